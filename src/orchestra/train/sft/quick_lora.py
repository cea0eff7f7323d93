"""Adapters as PEFT makes them, computed faster: the same parameters under the same names, a shorter way through them.

PEFT's own forward casts the input to the adapter's 32 bits and adds in several passes. Here the adapter's weights are
cast instead, and its product is added in place to the layer's, forth and back. Frozen weights may be kept in 8 bits,
with a scale for each output (and, for the way back, for each input); inputs and gradients get one for each token.
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
        layer, dropout = self.base_layer, self.lora_dropout[_ADAPTER]
        down, up = self.lora_A[_ADAPTER].weight.to(x.dtype), self.lora_B[_ADAPTER].weight.to(x.dtype)
        up = up * self.scaling[_ADAPTER]
        if isinstance(dropout, torch.nn.Dropout) and dropout.p > 0 and self.training:
            output: torch.Tensor = layer(x) + linear(linear(dropout(x), down), up)
            return output
        flat = x.reshape(-1, x.shape[-1])
        if isinstance(layer, EightBits):
            eight = (layer.forth, layer.forth_scale, layer.back, layer.back_scale)
            out: torch.Tensor = _Sum8.apply(flat, *eight, down, up)  # type: ignore[no-untyped-call]
        else:
            out = _Sum.apply(flat, layer.weight, down, up)  # type: ignore[no-untyped-call]
        if layer.bias is not None:
            out = out + layer.bias
        return out.view(*x.shape[:-1], out.shape[-1])


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
        """The product with the weights, for those who come without the adapter."""
        flat = x.reshape(-1, self.in_features)
        nothing = x.new_zeros(16, self.in_features), x.new_zeros(self.out_features, 16)
        product: Any = _Sum8.apply(flat, self.forth, self.forth_scale, self.back, self.back_scale, *nothing)  # type: ignore[no-untyped-call]
        out: torch.Tensor = product if self.bias is None else product + self.bias
        return out.view(*x.shape[:-1], self.out_features)


class _Sum(torch.autograd.Function):
    """x W' + x D' U': frozen W, trained D(own) and U(p)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        narrow = x @ down.t()
        ctx.save_for_backward(x, weight, narrow, down, up)
        out: torch.Tensor = product_plus(x, weight, narrow, up)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, narrow, down, up = ctx.saved_tensors
        gradient = gradient.contiguous()
        to_narrow = gradient @ up
        to_x = product_plus(gradient, weight.t(), to_narrow, down.t())
        return to_x, None, to_narrow.t() @ x, gradient.t() @ narrow


class _Sum8(torch.autograd.Function):
    """The same, with W in 8 bits."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        forth: torch.Tensor,
        forth_scale: torch.Tensor,
        back: torch.Tensor,
        back_scale: torch.Tensor,
        down: torch.Tensor,
        up: torch.Tensor,
    ) -> torch.Tensor:
        narrow = x @ down.t()
        ctx.save_for_backward(x, back, back_scale, narrow, down, up)
        out: torch.Tensor = product_plus_8(*_by_row(x), forth, forth_scale, narrow, up)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, back, back_scale, narrow, down, up = ctx.saved_tensors
        gradient = gradient.contiguous()
        to_narrow = gradient @ up
        to_x = product_plus_8(*_by_row(gradient), back, back_scale, to_narrow, down.t())
        return to_x, None, None, None, None, to_narrow.t() @ x, gradient.t() @ narrow


# Operators of their own, because the compiler would copy the first product before it adds the second.
@torch.library.custom_op("orchestra::product_plus", mutates_args=())
def product_plus(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """A b' + c d'."""
    return (a @ b.t()).addmm_(c, d.t())


@torch.library.custom_op("orchestra::product_plus_8", mutates_args=())
def product_plus_8(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
) -> torch.Tensor:
    """A b' + c d', with a and b in 8 bits."""
    product: torch.Tensor = torch._scaled_mm(
        a, b.t(), scale_a=a_scale, scale_b=b_scale.t(), out_dtype=c.dtype, use_fast_accum=True
    )
    return product.addmm_(c, d.t())


@product_plus.register_fake
def _(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return a.new_empty(a.shape[0], b.shape[0])


@product_plus_8.register_fake
def _(a: Any, a_scale: Any, b: Any, b_scale: Any, c: torch.Tensor, d: Any) -> torch.Tensor:  # noqa: ARG001
    return c.new_empty(a.shape[0], b.shape[0])


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
