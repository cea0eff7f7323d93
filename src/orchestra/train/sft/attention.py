"""Attention within documents that share a row, as a kernel that transformers' models can be told to use.

On a GPU, rows of several documents are laid end to end and attended by the variable-length flash kernel, which never
looks across a boundary; rows of one full document each need no mask at all. Elsewhere a mask says who sees whom.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from orchestra.train.sft.rows import Batch

NAME = "orchestra_documents"


class Layout(NamedTuple):
    """How a batch is handed to the model: the shape of its tensors, and what attention has to know."""

    tokens: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor
    attention: dict[str, Any]


def register() -> None:
    """Make the kernel known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)


def lay_out(batch: Batch, device: Any) -> Layout:
    """Choose the cheapest way to keep the documents of a batch apart. The batch is on the CPU."""
    alone = bool((batch.documents <= 0).all())  # one document a row; what follows it is padding, which sees only back
    moved = batch.to(device)
    if alone:
        return Layout(moved.tokens, moved.positions, moved.labels, {})
    if device.type == "cuda" and _VARLEN is not None:
        boundaries = batch.boundaries().to(device, non_blocking=True)
        torch._dynamo.mark_dynamic(boundaries, 0)  # each batch has another number of documents
        flat = [part.reshape(1, -1) for part in (moved.tokens, moved.positions, moved.labels)]
        return Layout(flat[0], flat[1], flat[2], {"boundaries": boundaries, "longest": batch.tokens.shape[1]})
    same = moved.documents.unsqueeze(2) == moved.documents.unsqueeze(1)
    causal = torch.ones(same.shape[1:], dtype=torch.bool, device=device).tril()
    return Layout(moved.tokens, moved.positions, moved.labels, {"visible": (same & causal).unsqueeze(1)})


def attend(
    module: Any,  # noqa: ARG001 - transformers fixes what is given
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    boundaries: torch.Tensor | None = None,
    longest: int = 0,
    visible: torch.Tensor | None = None,
    **others: Any,  # noqa: ARG001
) -> tuple[torch.Tensor, None]:
    """Attention of [rows, heads, length, width], as transformers calls it. Returns [rows, length, heads, width]."""
    if boundaries is not None:
        return _attend_flat(query, key, value, boundaries, longest, scaling), None
    mask = visible if visible is not None else attention_mask
    grouped = query.shape[1] != key.shape[1]
    attended = scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal=mask is None, scale=scaling, enable_gqa=grouped
    )
    return attended.transpose(1, 2).contiguous(), None


def _attend_flat(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: torch.Tensor,
    longest: int,
    scaling: float | None,
) -> torch.Tensor:
    parts = [part.squeeze(0).transpose(0, 1) for part in (query, key, value)]
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and "enable_gqa" not in _VARLEN_TAKES:  # older: as many heads on both sides
        parts[1:] = [part.repeat_interleave(groups, dim=1) for part in parts[1:]]
    more: dict[str, Any] = {"enable_gqa": groups > 1} if "enable_gqa" in _VARLEN_TAKES else {}
    more |= {"window_size": (-1, 0)} if "window_size" in _VARLEN_TAKES else {"is_causal": True}
    if "scale" in _VARLEN_TAKES:
        more["scale"] = scaling
    elif scaling is not None:  # older: always 1 / sqrt(width)
        parts[0] = parts[0] * (scaling * query.shape[-1] ** 0.5)
    flat: torch.Tensor = _VARLEN(*parts, boundaries, boundaries, longest, longest, **more).unsqueeze(0)
    return flat


def _find_varlen() -> tuple[Any, frozenset[str]]:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None, frozenset()
    return varlen_attn, frozenset(inspect.signature(varlen_attn).parameters)


_VARLEN, _VARLEN_TAKES = _find_varlen()
