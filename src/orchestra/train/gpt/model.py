"""The model: GPT-2's architecture, dense or with a mixture of experts in each layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from orchestra.train.attention import packed_attention
from orchestra.train.gpt.fp8 import fp8_linear
from orchestra.train.gpt.fused import cross_entropy_sum

Tensor = torch.Tensor
_MIX = (-4658895280553007687, -7723592293110705685)  # SplitMix64's constants, as int64
_INITIAL = 0.02


@dataclass(frozen=True)
class Shape:
    """How large the model is."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float = 0.0
    n_experts: int = 0
    top_k: int = 2
    fp8: bool = False


class Result(NamedTuple):
    """What a forward pass gives; sums, so that parts of a batch can be added up."""

    loss: Tensor
    """The sum of the cross-entropy over all targets."""
    auxiliary: Tensor
    """How unevenly the experts are used, the mean over layers; 1 is even."""
    used: Tensor
    """Tokens that each expert saw, layers x experts."""


class Linear(nn.Module):
    """A matrix without bias, whose product has the type of its input: the weights stay in fp32."""

    def __init__(self, inputs: int, outputs: int, deviation: float = _INITIAL, fp8: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs).normal_(std=deviation))
        self.fp8 = fp8

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        weight = self.weight.to(x.dtype)
        return fp8_linear(x, weight) if self.fp8 else functional.linear(x, weight)


class Norm(nn.Module):
    """Layer norm without bias, computed in fp32, with the type of its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """The normalized input."""
        return functional.layer_norm(x, self.weight.shape, self.weight.to(x.dtype))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.n_head
        self.qkv = Linear(shape.n_embd, 3 * shape.n_embd, fp8=shape.fp8)
        self.out = Linear(shape.n_embd, shape.n_embd, _INITIAL / math.sqrt(2 * shape.n_layer), fp8=shape.fp8)

    def forward(self, x: Tensor, documents: Tensor | None) -> Tensor:
        """Each token's view of those before it, in its own document if `documents` says which is whose."""
        rows, length, width = x.shape
        query, key, value = (
            part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        if documents is None:
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            seen = packed_attention(query, key, value, documents)
        mixed: Tensor = self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return mixed


class Mlp(nn.Module):
    """The dense feed-forward part."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = Linear(shape.n_embd, 4 * shape.n_embd, fp8=shape.fp8)
        self.down = Linear(4 * shape.n_embd, shape.n_embd, _INITIAL / math.sqrt(2 * shape.n_layer), fp8=shape.fp8)

    def forward(self, x: Tensor) -> Tensor:
        """What it adds."""
        added: Tensor = self.down(functional.gelu(self.up(x), approximate="tanh"))
        return added


class Experts(nn.Module):
    """A mixture of experts, each token seen by its `top_k` best.

    The experts are slices of two stacked parameters. Every rank touches those in every step, whomever its tokens
    choose, so that DDP and FSDP wait for no gradient that never comes.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.count, self.top_k = shape.n_experts, shape.top_k
        self.router = Linear(shape.n_embd, shape.n_experts)
        self.up = nn.Parameter(torch.empty(shape.n_experts, 4 * shape.n_embd, shape.n_embd).normal_(std=_INITIAL))
        small = _INITIAL / math.sqrt(2 * shape.n_layer)
        self.down = nn.Parameter(torch.empty(shape.n_experts, shape.n_embd, 4 * shape.n_embd).normal_(std=small))
        self.register_buffer("preference", torch.zeros(shape.n_experts), persistent=False)
        """Added to the router's scores: to watch what happens when one is never chosen."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What it adds, how unevenly, and how many tokens each expert saw."""
        tokens = x.reshape(-1, x.shape[-1])
        scores = (self.router(tokens).float() + self.preference).softmax(dim=-1)
        weights, chosen = scores.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        used = functional.one_hot(chosen, self.count).sum(dim=(0, 1)).to(scores.dtype)
        auxiliary = self.count * (used / used.sum() * scores.mean(dim=0)).sum()
        return self._mixed(tokens, weights, chosen).view_as(x), auxiliary, used.detach()

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # how many tokens an expert gets is known at run time only
    def _mixed(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        up, down = self.up.to(tokens.dtype), self.down.to(tokens.dtype)
        mixed = torch.zeros_like(tokens)
        for expert in range(self.count):
            row, place = (chosen == expert).nonzero(as_tuple=True)
            hidden = functional.gelu(functional.linear(tokens[row], up[expert]), approximate="tanh")
            added = functional.linear(hidden, down[expert]) * weights[row, place, None].to(tokens.dtype)
            mixed = mixed.index_add(0, row, added)
        return mixed


class Block(nn.Module):
    """One layer."""

    def __init__(self, shape: Shape, number: int) -> None:
        super().__init__()
        self.number = number
        self.dropout = shape.dropout
        self.attention_norm, self.attention = Norm(shape.n_embd), Attention(shape)
        self.mlp_norm = Norm(shape.n_embd)
        self.mlp: nn.Module = Experts(shape) if shape.n_experts else Mlp(shape)

    def forward(self, x: Tensor, documents: Tensor | None, keys: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The layer's output; auxiliary loss and use of the experts."""
        site = 2 * self.number + 1
        x = x + keyed_dropout(self.attention(self.attention_norm(x), documents), self.dropout, keys, site)
        added = self.mlp(self.mlp_norm(x))
        nothing = x.new_zeros((), dtype=torch.float32)
        added, auxiliary, used = added if isinstance(added, tuple) else (added, nothing, nothing[None])
        return x + keyed_dropout(added, self.dropout, keys, site + 1), auxiliary, used


class Gpt(nn.Module):
    """The whole model. Input embedding and output matrix are one."""

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.tokens = nn.Embedding(shape.vocab_size, shape.n_embd)
        self.positions = nn.Embedding(shape.block_size, shape.n_embd)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=_INITIAL)
        self.blocks = nn.ModuleList(Block(shape, number) for number in range(shape.n_layer))
        self.norm = Norm(shape.n_embd)

    def forward(
        self,
        inputs: Tensor,
        targets: Tensor,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Result:
        """The loss on these targets (-100: none). `keys`, one a row, are what dropout depends on; None: no dropout."""
        x, auxiliary, used = self._hidden(inputs, positions, documents, keys)
        loss = cross_entropy_sum(x, self.tokens.weight, targets, self.shape.fp8)
        return Result(loss, auxiliary, used)

    def logits(self, inputs: Tensor) -> Tensor:
        """The scores of what follows the last token."""
        x, _, _ = self._hidden(inputs, None, None, None)
        return functional.linear(x[:, -1], self.tokens.weight.to(x.dtype)).float()

    def _hidden(
        self, inputs: Tensor, positions: Tensor | None, documents: Tensor | None, keys: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if positions is None:
            positions = torch.arange(inputs.shape[1], device=inputs.device)
        x = (self.tokens(inputs) + self.positions(positions)).to(self.dtype)
        x = keyed_dropout(x, self.shape.dropout, keys, 0)
        uneven, uses = [], []
        for block in self.blocks:
            x, auxiliary, used = block(x, documents, keys)
            uneven.append(auxiliary)
            uses.append(used)
        return self.norm(x), torch.stack(uneven).mean(), torch.stack(uses)

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Matrices decay, vectors do not."""
        decayed = [parameter for parameter in self.parameters() if parameter.dim() >= 2]
        others = [parameter for parameter in self.parameters() if parameter.dim() < 2]
        return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]

    def flops_per_token(self) -> float:
        """Forward and backward, as MFU is usually counted: 6 a parameter that a token uses, and attention."""
        shape = self.shape
        count = sum(parameter.numel() for parameter in self.parameters()) - self.positions.weight.numel()
        if shape.n_experts:
            count -= (shape.n_experts - shape.top_k) * shape.n_layer * 8 * shape.n_embd**2
        return 6 * count + 12 * shape.n_layer * shape.n_embd * shape.block_size


def dropout_keys(seed: int, step: int, samples: list[int], device: torch.device) -> Tensor:
    """One key for each sample of a step: the same on whatever rank, and in whatever part, the sample is computed."""
    whole = [(seed * 1_000_003 + step) * 1_000_003 + sample for sample in samples]
    keys = torch.tensor([number % (1 << 63) for number in whole], dtype=torch.int64)
    return _mixed_bits(keys).to(device)


def keyed_dropout(x: Tensor, share: float, keys: Tensor | None, site: int) -> Tensor:
    """Dropout whose choice is a function of the row's key, the site in the model and the place in the row alone."""
    if keys is None or share == 0:
        return x
    places = torch.arange(x[0].numel(), device=x.device).view(1, *x.shape[1:])
    row = _mixed_bits(keys + site).view(-1, *[1] * (x.dim() - 1))
    chance = (_mixed_bits(places + row) & 0xFFFFFF).to(torch.float32) / float(1 << 24)
    return x * ((chance >= share).to(x.dtype) / (1 - share))


def _mixed_bits(value: Tensor) -> Tensor:
    """SplitMix64 on int64 (the shifts are arithmetic here, which does as well)."""
    value = (value ^ (value >> 30)) * _MIX[0]
    value = (value ^ (value >> 27)) * _MIX[1]
    return value ^ (value >> 31)
