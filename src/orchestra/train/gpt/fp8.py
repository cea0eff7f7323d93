"""Matrix products in FP8: e4m3 forward, e5m2 for the gradient of the input; the gradient of the weights stays in bf16.

Scales are fixed, so that no pass over a tensor is needed to find its largest value: inputs come from norms, GELUs and
attention, and are well below 56; weights below 7; and e5m2 spans thirty powers of two, room enough for gradients of any
layer once they are counted for a token instead of a batch. What is larger is cut off.
"""

from __future__ import annotations

from typing import Any

import torch

from orchestra.train.world import Refused

Tensor = torch.Tensor
_FORWARD, _BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
_INPUT, _WEIGHT, _GRADIENT = 8.0, 64.0, 256.0
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
    """`x @ weight.T`, forward and the gradient of `x` in FP8. Sizes must be multiples of 16."""
    flat: Any = _Fp8Linear.apply(x.reshape(-1, x.shape[-1]), weight)  # type: ignore[no-untyped-call]
    result: Tensor = flat.view(*x.shape[:-1], weight.shape[0])
    return result


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T` in FP8, without gradients."""
    return _times(_cast(x, _INPUT, _FORWARD), _INPUT, _cast(weight, _WEIGHT, _FORWARD).t(), _WEIGHT, x.dtype)


class _Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        w8 = _cast(weight, _WEIGHT, _FORWARD)
        ctx.save_for_backward(x, w8)
        return _times(_cast(x, _INPUT, _FORWARD), _INPUT, w8.t(), _WEIGHT, x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w8 = ctx.saved_tensors
        scale = _GRADIENT * len(x)
        # The right operand must lie column by column: its transpose, made contiguous.
        dx = _times(_cast(gradient, scale, _BACKWARD), scale, w8.t().contiguous().t(), _WEIGHT, gradient.dtype)
        return dx, gradient.t() @ x


def _cast(x: Tensor, scale: float, kind: torch.dtype) -> Tensor:
    largest = torch.finfo(kind).max
    return (x * scale).clamp(-largest, largest).to(kind)


def _times(left: Tensor, left_scale: float, right: Tensor, right_scale: float, kind: torch.dtype) -> Tensor:
    back = [torch.full((), 1 / scale, device=left.device) for scale in (left_scale, right_scale)]
    return torch._scaled_mm(left, right, back[0], back[1], out_dtype=kind, use_fast_accum=True)
