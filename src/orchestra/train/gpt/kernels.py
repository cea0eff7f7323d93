# mypy: ignore-errors
"""Triton kernels. Imported only where there is a GPU."""

import triton
import triton.language as tl


@triton.jit
def softmax_minus_one_hot(logits, targets, losses, width, stride, BLOCK: tl.constexpr):  # noqa: N803
    """One row: its loss, and its gradient in its own place. The second reading comes from the cache."""
    row = tl.program_id(0)
    target = tl.load(targets + row)
    start = logits + row.to(tl.int64) * stride
    highest = -float("inf")
    total = 0.0
    for begin in range(0, width, BLOCK):
        places = begin + tl.arange(0, BLOCK)
        values = tl.load(start + places, mask=places < width, other=-float("inf")).to(tl.float32)
        new = tl.maximum(highest, tl.max(values, axis=0))
        total = total * tl.exp(highest - new) + tl.sum(tl.exp(values - new), axis=0)
        highest = new
    counts = target >= 0
    at_target = tl.load(start + tl.where(counts, target, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(counts, highest + tl.log(total) - at_target, 0.0))
    factor = tl.where(counts, 1.0, 0.0)
    for begin in range(0, width, BLOCK):
        places = begin + tl.arange(0, BLOCK)
        values = tl.load(start + places, mask=places < width, other=-float("inf")).to(tl.float32)
        gradient = tl.exp(values - highest) / total - tl.where(places == target, 1.0, 0.0)
        tl.store(start + places, (gradient * factor).to(tl.bfloat16), mask=places < width)
