"""Adapters as PEFT makes them, computed faster: the same parameters under the same names, a shorter way through them.

PEFT's own forward casts the input to the adapter's 32 bits and adds in several passes. Here the adapter's weights are
cast instead, and the sum is part of the matrix product. Frozen weights may be kept in 8 bits, with a scale for each
output (and, for the way back, for each input); inputs and gradients get one for each token as they come.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch.nn.functional import linear

from orchestra.train.world import Refused

_EIGHT_BITS = torch.float8_e4m3fn
_LARGEST = 448.0
_ADAPTER = "default"


def quicken(model: torch.nn.Module, *, fp8: bool) -> None:
    """Let all plain adapters of a model take the shorter way. Others (DoRA, say, or quantized) stay as they are."""
    for module in list(model.modules()):
        if type(module) is not LoraLinear or not _is_plain(module):
            continue
        module.__class__ = QuickLora
        if fp8:
            module.base_layer = EightBits(module.base_layer)


def refuse_without_fp8(device: torch.device) -> None:
    """Raise `Refused` where the device has no 8-bit matrix products."""
    if device.type != "cuda":
        raise Refused("--fp8 needs a GPU of compute capability 8.9 or more; this process runs on the CPU.")
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 9):
        raise Refused(f"--fp8 needs compute capability 8.9; this GPU has {capability[0]}.{capability[1]}.")


class QuickLora(LoraLinear):  # type: ignore[misc]
    """One linear layer and its adapter."""

    def forward(self, x: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        """The layer's output plus the adapter's."""
        if self.disable_adapters or self.merged:
            plain: torch.Tensor = super().forward(x, *others, **named)
            return plain
        down, up = self.lora_A[_ADAPTER].weight.to(x.dtype), self.lora_B[_ADAPTER].weight.to(x.dtype)
        base = self.base_layer(x)
        narrow = linear(self.lora_dropout[_ADAPTER](x), down)
        added = torch.addmm(
            base.reshape(-1, base.shape[-1]), narrow.reshape(-1, narrow.shape[-1]), up.t(), alpha=self.scaling[_ADAPTER]
        )
        return added.view(base.shape)


class EightBits(torch.nn.Module):
    """A frozen linear layer in 8 bits."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        forth, forth_scale = _by_row(layer.weight.detach())
        back, back_scale = _by_row(layer.weight.detach().t().contiguous())
        for name, tensor in {
            "forth": forth,
            "forth_scale": forth_scale,
            "back": back,
            "back_scale": back_scale,
        }.items():
            self.register_buffer(name, tensor, persistent=False)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product with the weights."""
        flat = x.reshape(-1, self.in_features)
        out: torch.Tensor = _EightBitProduct.apply(flat, self.forth, self.forth_scale, self.back, self.back_scale)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            out = out + self.bias  # type: ignore[operator]
        return out.view(*x.shape[:-1], self.out_features)


class _EightBitProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forth: Any, forth_scale: Any, back: Any, back_scale: Any) -> torch.Tensor:
        ctx.save_for_backward(back, back_scale)
        return _product(x, forth, forth_scale)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        back, back_scale = ctx.saved_tensors
        return _product(gradient, back, back_scale), None, None, None, None


def _product(x: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    small, own_scale = _by_row(x)
    product: torch.Tensor = torch._scaled_mm(
        small, weights.t(), scale_a=own_scale, scale_b=scale.t(), out_dtype=x.dtype, use_fast_accum=True
    )
    return product


def _by_row(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / _LARGEST
    return (x.float() / scale).to(_EIGHT_BITS), scale


def _is_plain(module: Any) -> bool:
    return (
        list(module.lora_A) == [_ADAPTER]
        and type(module.base_layer) is torch.nn.Linear
        and not any(getattr(module, "use_dora", {}).values())
        and getattr(module.lora_B[_ADAPTER], "bias", None) is None
        and not getattr(module, "lora_variant", {}).get(_ADAPTER)
    )
