"""How processes share the work: DDP or FSDP2 by torch itself. (DeepSpeed: zero.py, with the same methods.)"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Protocol

import torch

from orchestra.train.checkpoints import Checkpoints, Loaded
from orchestra.train.sft.attention import Layout
from orchestra.train.sft.model import LossOf
from orchestra.train.sft.options import Options
from orchestra.train.world import World


class Parallel(Protocol):
    """The model on all processes together."""

    loss_of: LossOf

    def loss(self, layout: Layout) -> torch.Tensor:
        """The sum of the losses of this rank's rows."""

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Stands around forward and backward."""

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the loss's gradient; after the `last` of a step, over all ranks."""

    def update(self, lr: float) -> None:
        """Move the weights, and forget the gradient."""

    def weights(self) -> dict[str, Any]:
        """All trained weights, on rank 0. Called on all ranks."""

    def save(self, checkpoints: Checkpoints, step: int, notes: dict[str, Any], wait: bool) -> Path | None:
        """Write a checkpoint. If it is not waited for, it may still be on its way when this returns."""

    def load(self, checkpoints: Checkpoints) -> Loaded | None:
        """Read the newest checkpoint and take its weights. Returns it with the notes as its state."""


class Native:
    """DDP, or FSDP2 where each layer's weights are spread over the processes."""

    def __init__(self, loss_of: LossOf, options: Options, world: World) -> None:
        self.loss_of = loss_of
        self._world = world
        self._clip = options.clip
        self._sharded = options.parallel == "fsdp" and world.size > 1
        if options.compile and world.device.type == "cuda":
            loss_of.compile_layers()
        self._module: Any = loss_of
        if self._sharded:
            self._shard(options)
        elif world.size > 1:
            gpu = [world.device] if world.device.type == "cuda" else None
            self._module = torch.nn.parallel.DistributedDataParallel(
                loss_of, device_ids=gpu, gradient_as_bucket_view=True
            )
        self._trained = [parameter for parameter in loss_of.parameters() if parameter.requires_grad]
        self._optimizer = make_optimizer(self._trained, options, world)

    def loss(self, layout: Layout) -> torch.Tensor:
        """The sum of the losses of this rank's rows."""
        loss: torch.Tensor = self._module(layout.tokens, layout.positions, layout.labels, layout.attention)
        return loss

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the loss's gradient; after the `last` of a step, over all ranks."""
        if self._sharded:
            self.loss_of.set_requires_gradient_sync(last)  # type: ignore[operator]
        # Both average over the ranks; the sum is what does not depend on their number.
        (loss * self._world.size).backward()  # type: ignore[no-untyped-call]

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around forward and backward: DDP talks to the others only in the last of a step."""
        if isinstance(self._module, torch.nn.parallel.DistributedDataParallel) and not last:
            quiet: contextlib.AbstractContextManager[Any] = self._module.no_sync()
            return quiet
        return contextlib.nullcontext()

    def update(self, lr: float) -> None:
        """Move the weights, and forget the gradient."""
        if self._clip:
            torch.nn.utils.clip_grad_norm_(self._trained, self._clip)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def weights(self) -> dict[str, Any]:
        """All trained weights, on rank 0. Called on all ranks."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        return get_model_state_dict(self.loss_of, options=self._whole(ignore_frozen_params=True))

    def save(self, checkpoints: Checkpoints, step: int, notes: dict[str, Any], wait: bool) -> Path | None:
        """Write a checkpoint that any number of processes can read: each rank its shards, or rank 0 everything."""
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_model_state_dict,
            get_optimizer_state_dict,
        )

        trained = StateDictOptions(ignore_frozen_params=True)
        weights = get_model_state_dict(self.loss_of, options=trained)
        optimizer = get_optimizer_state_dict(self.loss_of, self._optimizer, options=StateDictOptions())
        state = {"weights": weights, "optimizer": optimizer, "notes": notes}
        if wait:
            return checkpoints.save(step, state)
        checkpoints.save_async(step, state)
        return None

    def load(self, checkpoints: Checkpoints) -> Loaded | None:
        """Read the newest checkpoint and take its weights. Returns it with the notes as its state."""
        from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

        loaded = checkpoints.load()
        if loaded is None:
            return None
        partly = self._whole(strict=False)
        set_model_state_dict(self.loss_of, loaded.state["weights"], options=partly)
        set_optimizer_state_dict(self.loss_of, self._optimizer, loaded.state["optimizer"], options=partly)
        return Loaded(loaded.step, loaded.path, loaded.state["notes"])

    def _shard(self, options: Options) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh(self._world.device.type, (self._world.size,))
        bf16 = self.loss_of.dtype == torch.bfloat16 and not options.lora_rank
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
        for layer in self.loss_of.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self.loss_of, mesh=mesh, mp_policy=policy)

    @staticmethod
    def _whole(**more: Any) -> Any:
        from torch.distributed.checkpoint.state_dict import StateDictOptions

        return StateDictOptions(full_state_dict=True, cpu_offload=True, **more)


def make_optimizer(trained: list[Any], options: Options, world: World) -> torch.optim.Optimizer:
    """AdamW."""
    fused = world.device.type == "cuda"
    return torch.optim.AdamW(trained, lr=options.lr, betas=(0.9, 0.95), weight_decay=options.weight_decay, fused=fused)
