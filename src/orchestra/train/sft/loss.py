"""Cross-entropy over a large vocabulary without keeping the logits: in chunks that leave only gradients behind."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from orchestra.train.sft.rows import IGNORED

CHUNK = 4096


def chunked_cross_entropy(
    hidden: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, chunk: int = CHUNK
) -> torch.Tensor:
    """The sum of the losses of all labels that are not IGNORED. `hidden` is [tokens, width], `head` [words, width]."""
    loss: torch.Tensor = _ChunkedCrossEntropy.apply(hidden, head, labels, chunk)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes the gradients along with the loss: logits of [tokens, words] would be most of the memory of a step."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, chunk: int) -> torch.Tensor:
        wants_hidden, wants_head = ctx.needs_input_grad[:2]
        with torch.autocast(hidden.device.type, enabled=False):
            weights = head.to(hidden.dtype)
            to_hidden = torch.empty_like(hidden) if wants_hidden else None
            to_head = torch.zeros_like(head, dtype=torch.float32) if wants_head else None
            total = torch.zeros((), dtype=torch.float32, device=hidden.device)
            for first in range(0, hidden.shape[0], chunk):
                part = slice(first, first + chunk)
                logits = hidden[part] @ weights.t()
                loss, gradient = _loss_and_gradient(hidden.device.type)(logits, labels[part])
                del logits
                total += loss
                if to_hidden is not None:
                    torch.mm(gradient, weights, out=to_hidden[part])
                if to_head is not None:
                    to_head += gradient.t() @ hidden[part]
        ctx.save_for_backward(to_hidden, to_head)
        ctx.head_dtype = head.dtype
        return total

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        to_hidden, to_head = ctx.saved_tensors
        return (
            None if to_hidden is None else to_hidden * upstream.to(to_hidden.dtype),
            None if to_head is None else (to_head * upstream).to(ctx.head_dtype),
            None,
            None,
        )


def _eager(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = logits.float()
    counts = labels != IGNORED
    safe = labels.clamp(min=0)
    norm = numbers.logsumexp(dim=1)
    loss = ((norm - numbers.gather(1, safe.unsqueeze(1)).squeeze(1)) * counts).sum()
    hit = torch.arange(logits.shape[1], device=logits.device).unsqueeze(0) == safe.unsqueeze(1)
    gradient = ((numbers - norm.unsqueeze(1)).exp() - hit.float()) * counts.unsqueeze(1)
    return loss, gradient.to(logits.dtype)


@functools.lru_cache(maxsize=2)
def _loss_and_gradient(device: str) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    compiled: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] = torch.compile(_eager)
    return compiled if device == "cuda" else _eager
