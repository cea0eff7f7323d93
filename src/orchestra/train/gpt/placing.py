"""Putting the model on its device, and on all processes."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from orchestra.train.gpt.fp8 import refuse_without_fp8
from orchestra.train.gpt.model import Gpt, Shape
from orchestra.train.gpt.options import Options
from orchestra.train.world import World

_HOPPER = (9, 0)
_CUDNN_WIDTH = 128
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12}
"""Dense bf16, by the data sheets."""


class Placed:
    """A model that can be trained here: `net` is the model itself, `model` what is called."""

    def __init__(self, options: Options, world: World) -> None:
        if options.fp8:
            refuse_without_fp8(world.device)
        self.dtype = _dtype(options.precision, world.device)
        self.shape = Shape(
            options.vocab_size,
            options.block_size,
            options.n_layer,
            options.n_head,
            options.n_embd,
            options.dropout,
            options.n_experts,
            options.top_k,
            options.fp8,
        )
        self.net = Gpt(self.shape, self.dtype).to(world.device)
        self.sharded = options.parallel == "fsdp" and world.size > 1
        self._world = world
        self._compile = options.compile == "yes" or (options.compile == "auto" and world.device.type == "cuda")
        _prefer_cudnn_attention(self.shape, world.device)
        if self.sharded:
            self._shard()
        self.model: Any = self.net

    def wrap(self) -> None:
        """Make it callable on all processes. After loading: DDP takes over what rank 0 has."""
        if self.sharded:
            self.model = self.net
            return
        self.model = torch.compile(self.net) if self._compile else self.net
        if self._world.size > 1:
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True, broadcast_buffers=False)

    def part(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around one part of a step: gradients travel only after the last."""
        if self.sharded:
            self.net.set_requires_gradient_sync(last)  # type: ignore[operator]  # fully_shard adds it
        elif self._world.size > 1 and not last:
            quiet: contextlib.AbstractContextManager[None] = self.model.no_sync()
            return quiet
        return contextlib.nullcontext()

    def utilization(self, tokens_per_second: float) -> float | None:
        """MFU: the share of the GPUs' peak that training uses; None where the peak is not known."""
        if self._world.device.type != "cuda":
            return None
        name = torch.cuda.get_device_name(self._world.device)
        peak = next((value for word, value in _PEAKS.items() if word in name), None)
        return self.net.flops_per_token() * tokens_per_second / (peak * self._world.size) if peak else None

    def _shard(self) -> None:
        kept: Any = self.dtype if self.dtype != torch.float32 else None
        policy = MixedPrecisionPolicy(param_dtype=kept, reduce_dtype=torch.float32)
        for block in self.net.blocks:
            if self._compile:
                block.compile()
            fully_shard(block, mp_policy=policy)
        fully_shard(self.net, mp_policy=policy)


def optimizer(options: Options, net: Gpt, device: torch.device) -> torch.optim.Optimizer:
    """AdamW, fused on a GPU."""
    betas = (options.beta1, options.beta2)
    groups = net.parameter_groups(options.weight_decay)
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=betas, fused=device.type == "cuda")


def bytes_to_stage(placed: Placed, size: int) -> int:
    """What an asynchronous save of model and AdamW's two moments copies on one rank, and a little more."""
    whole = sum(parameter.numel() for parameter in placed.net.parameters()) * 3 * 4
    return int(whole / (size if placed.sharded else 1) * 1.01) + (4 << 20)


def clip(parameters: Any, largest: float) -> torch.Tensor:
    """Bound the gradient's norm. Returns what it was (a tensor: nobody waits for the GPU)."""
    norm: Any = nn.utils.clip_grad_norm_(parameters, largest if largest else float("inf"))
    whole: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _dtype(precision: str, device: torch.device) -> torch.dtype:
    on_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if precision == "bf16" or (precision == "auto" and on_gpu) else torch.float32


def _prefer_cudnn_attention(shape: Shape, device: torch.device) -> None:
    """On Hopper and newer cuDNN's attention is the quickest for the usual widths."""
    if device.type != "cuda" or shape.n_embd // shape.n_head > _CUDNN_WIDTH:
        return
    cuda: Any = torch.backends.cuda
    if torch.cuda.get_device_capability(device) >= _HOPPER and cuda.cudnn_sdp_enabled():
        cuda.enable_flash_sdp(False)
        cuda.enable_mem_efficient_sdp(False)
