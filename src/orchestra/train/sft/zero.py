"""Fine-tuning with DeepSpeed's ZeRO, under torchrun or the deepspeed launcher."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch

from orchestra.train.checkpoints import Checkpoints, Loaded
from orchestra.train.manifest import Manifest
from orchestra.train.sft.attention import Layout
from orchestra.train.sft.model import LossOf
from orchestra.train.sft.options import Options
from orchestra.train.sft.parallel import make_optimizer
from orchestra.train.world import Refused, World

_TAG = "deepspeed"
_NOTES = "state.pt"


class Zero:
    """The model in a DeepSpeed engine: optimizer states, gradients or weights are spread over the processes."""

    def __init__(self, loss_of: LossOf, options: Options, world: World) -> None:
        deepspeed = _import()
        config = _config(options, world, loss_of.dtype)
        self._stage = int(config.get("zero_optimization", {}).get("stage", 0))
        loss_of.in_chunks = self._stage < 3  # there, the last layer's weights exist only while the layer runs
        self.loss_of = loss_of
        self._world = world
        self._pieces = int(config["gradient_accumulation_steps"])
        self._has_adapter = bool(options.lora_rank)
        _join_alone_if_nobody_else(world)
        deepspeed.init_distributed(dist_backend=world.backend, auto_mpi_discovery=False, verbose=False)
        trained = [parameter for parameter in loss_of.parameters() if parameter.requires_grad]
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=loss_of, optimizer=make_optimizer(trained, options, world), config=config, dist_init_required=False
        )

    def loss(self, layout: Layout) -> torch.Tensor:
        """The sum of the losses of this rank's rows."""
        loss: torch.Tensor = self._engine(layout.tokens, layout.positions, layout.labels, layout.attention)
        return loss

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[Any]:  # noqa: ARG002
        """DeepSpeed counts by itself."""
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the loss's gradient; DeepSpeed averages over the ranks and over the pieces of a step: we want sums."""
        self._engine.backward(loss * (self._world.size * self._pieces))
        if not last:
            self._engine.step()  # counts a piece; moves nothing before the last

    def update(self, lr: float) -> None:
        """Move the weights, and forget the gradient."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._engine.step()

    def weights(self) -> dict[str, Any]:
        """All trained weights, on rank 0. Called on all ranks."""
        import deepspeed

        named = {name: parameter for name, parameter in self.loss_of.named_parameters() if parameter.requires_grad}
        gathered = deepspeed.zero.GatheredParameters(list(named.values()), enabled=self._stage == 3)
        with gathered:
            return {name: parameter.detach().cpu().clone() for name, parameter in named.items() if self._world.is_first}

    def save(self, checkpoints: Checkpoints, step: int, notes: dict[str, Any], wait: bool) -> Path:  # noqa: ARG002
        """DeepSpeed's own files, under our manifest."""

        def write(folder: Path) -> None:
            self._engine.save_checkpoint(str(folder), tag=_TAG, exclude_frozen_parameters=self._has_adapter)
            if self._world.is_first:
                torch.save({"notes": notes}, folder / _NOTES)

        return checkpoints.save_files(step, write)

    def load(self, checkpoints: Checkpoints) -> Loaded | None:
        """Read the newest checkpoint and take its weights, if as many processes saved it."""
        loaded = checkpoints.load()
        if loaded is None:
            return None
        size = Manifest.read(loaded.path).world_size
        if size != self._world.size:
            raise Refused(
                f"the checkpoint {loaded.path} was saved by DeepSpeed on {size} processes and there are "
                f"{self._world.size} now: start {size}, or convert it with DeepSpeed's ds_to_universal."
            )
        strictly = not self._has_adapter
        self._engine.load_checkpoint(str(loaded.path), tag=_TAG, load_module_strict=strictly)
        return Loaded(loaded.step, loaded.path, loaded.state["notes"])


def _import() -> Any:
    try:
        import deepspeed
    except ImportError as error:
        raise Refused(f"--parallel deepspeed needs DeepSpeed, which cannot be imported here: {error}") from error
    return deepspeed


def _config(options: Options, world: World, dtype: torch.dtype) -> dict[str, Any]:
    config: dict[str, Any] = {"zero_optimization": {"stage": 2}}
    if options.deepspeed_config:
        config = _read(Path(options.deepspeed_config))
    if "optimizer" in config or "scheduler" in config:
        raise Refused(
            f'{options.deepspeed_config}: leave out "optimizer" and "scheduler": --lr, --warmup, --weight-decay say it.'
        )
    rows = -(-options.batch // world.size)
    config["train_micro_batch_size_per_gpu"] = options.micro_batch
    config["gradient_accumulation_steps"] = -(-rows // options.micro_batch)
    config.pop("train_batch_size", None)
    config["gradient_clipping"] = options.clip
    config.setdefault("bf16", {"enabled": dtype == torch.bfloat16})
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror} (--deepspeed-config)") from error
    except ValueError as error:
        raise Refused(f"{path} is not JSON: {error} (--deepspeed-config)") from error
    if not isinstance(config, dict):
        raise Refused(f"{path} is not a JSON object (--deepspeed-config)")
    return config


def _join_alone_if_nobody_else(world: World) -> None:
    """DeepSpeed wants a process group even for one process."""
    import torch.distributed as dist

    if not dist.is_initialized():
        alone = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(world.backend, store=alone, rank=0, world_size=1)
