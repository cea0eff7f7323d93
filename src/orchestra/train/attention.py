"""Causal attention over rows that hold several documents, none of which sees another."""

from __future__ import annotations

import functools
from typing import Any


def packed_attention(query: Any, key: Any, value: Any, documents: Any) -> Any:
    """Causal attention (batch x heads x length x width) within documents, which `documents` (batch x length) numbers.

    On the GPU by FlexAttention, which skips blocks that no document spans; on the CPU by a mask. Padding, numbered -1,
    sees only itself.
    """
    import torch

    if query.device.type == "cuda":
        return _flex()(query, key, value, block_mask=block_mask(documents), enable_gqa=query.shape[1] != key.shape[1])
    length = query.shape[-2]
    causal = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    same = documents[:, None, :, None] == documents[:, None, None, :]
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=same & causal, enable_gqa=query.shape[1] != key.shape[1]
    )


def block_mask(documents: Any) -> Any:
    """FlexAttention's mask for packed rows. The same for all layers of a batch: make it once where that matters."""
    from torch.nn.attention.flex_attention import create_block_mask

    def visible(batch: Any, _head: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (documents[batch, query] == documents[batch, key])

    rows, length = documents.shape
    return create_block_mask(visible, rows, None, length, length, device=documents.device)


@functools.lru_cache(maxsize=1)
def _flex() -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)
