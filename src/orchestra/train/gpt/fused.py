"""Cross-entropy of a large vocabulary without the logits of a whole batch, and with one pass over them.

On a GPU the gradient of the logits is computed in place right after they are, chunk by chunk, and turned into those of
the hidden state and the output matrix at once: the logits are written once and read twice, and never kept. Elsewhere,
and where no gradient is wanted, it is plain PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from orchestra.train.gpt.fp8 import product

Tensor = torch.Tensor
_CHUNK = 16384
_BLOCK = 4096
IGNORED = -100


def cross_entropy_sum(x: Tensor, weight: Tensor, targets: Tensor, fp8: bool = False) -> Tensor:
    """The sum over all targets (-100: none) of the cross-entropy of `x @ weight.T`; in training that product in FP8."""
    flat, wanted = x.reshape(-1, x.shape[-1]), targets.reshape(-1)
    if x.device.type == "cuda" and torch.is_grad_enabled() and x.dtype == torch.bfloat16:
        fused: Tensor = _Fused.apply(flat, weight, wanted, fp8)  # type: ignore[no-untyped-call]
        return fused
    logits = functional.linear(flat, weight.to(x.dtype))
    loss: Tensor = functional.cross_entropy(logits.float(), wanted, ignore_index=IGNORED, reduction="sum")
    return loss


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, fp8: bool) -> Tensor:
        loss, dx, dw = loss_and_gradients(x, weight.to(x.dtype), targets, fp8)
        ctx.save_for_backward(dx, dw)
        ctx.weight_dtype = weight.dtype
        total: Tensor = loss
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dx, dw = ctx.saved_tensors
        return dx * gradient.to(dx.dtype), (dw * gradient).to(ctx.weight_dtype), None, None


@torch.library.custom_op("orchestra::loss_and_gradients", mutates_args=())
def loss_and_gradients(x: Tensor, weight: Tensor, targets: Tensor, fp8: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss, and its gradients by `x` and `weight`."""
    from orchestra.train.gpt.kernels import softmax_minus_one_hot

    losses = torch.empty(len(x), dtype=torch.float32, device=x.device)
    dx = torch.empty_like(x)
    dw = torch.zeros(weight.shape, dtype=torch.float32, device=x.device)
    vocabulary = weight.shape[0]
    for first in range(0, len(x), _CHUNK):
        part = slice(first, min(first + _CHUNK, len(x)))
        logits = product(x[part], weight) if fp8 else x[part] @ weight.t()
        softmax_minus_one_hot[(len(logits),)](
            logits, targets[part], losses[part], vocabulary, logits.stride(0), BLOCK=_BLOCK, num_warps=8
        )
        torch.mm(logits, weight, out=dx[part])
        dw += logits.t() @ x[part]
    return losses.sum(), dx, dw


@loss_and_gradients.register_fake
def _(x: Tensor, weight: Tensor, targets: Tensor, fp8: bool = False) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG001
    return x.new_empty((), dtype=torch.float32), torch.empty_like(x), torch.empty_like(weight, dtype=torch.float32)
