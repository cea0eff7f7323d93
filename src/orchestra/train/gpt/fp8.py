"""Matrix products in FP8: e4m3 forward, e5m2 for gradients, each tensor scaled by its own largest value."""

from __future__ import annotations

from typing import Any

import torch

from orchestra.train.world import Refused

Tensor = torch.Tensor
_FORWARD, _BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
_NEEDED = (8, 9)


def refuse_without_fp8(device: torch.device) -> None:
    """Raise `Refused` unless the device multiplies in FP8."""
    if device.type != "cuda":
        raise Refused("--fp8 needs a GPU of compute capability 8.9 or newer (Ada, Hopper); this runs on the CPU")
    have = torch.cuda.get_device_capability(device)
    if have < _NEEDED:
        name = torch.cuda.get_device_name(device)
        raise Refused(
            f"--fp8 needs compute capability 8.9 or newer (Ada, Hopper); {name} has {have[0]}.{have[1]}. Leave it out: "
            "bf16 is what this GPU does best."
        )


def fp8_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T` with the three products (forward, both gradients) in FP8. Sizes must be multiples of 16."""
    flat: Any = _Fp8Linear.apply(x.reshape(-1, x.shape[-1]), weight)  # type: ignore[no-untyped-call]
    result: Tensor = flat.view(*x.shape[:-1], weight.shape[0])
    return result


class _Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8, x_scale = _scaled(x, _FORWARD)
        w8, w_scale = _scaled(weight, _FORWARD)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        return torch._scaled_mm(x8, w8.t(), x_scale, w_scale, out_dtype=x.dtype, use_fast_accum=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        g8, g_scale = _scaled(gradient, _BACKWARD)
        kind = gradient.dtype
        # The right operand must lie column by column: its transpose, made contiguous.
        dx = torch._scaled_mm(g8, w8.t().contiguous().t(), g_scale, w_scale, out_dtype=kind)
        dw = torch._scaled_mm(g8.t().contiguous(), x8.t().contiguous().t(), g_scale, x_scale, out_dtype=kind)
        return dx, dw


def _scaled(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """The tensor in FP8, and what to multiply it with to have it back."""
    largest = torch.finfo(kind).max
    scale = (x.abs().amax().float() / largest).clamp(min=1e-12)
    return (x.float() / scale).clamp(-largest, largest).to(kind), scale
