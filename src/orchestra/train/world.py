"""Where this process stands among the others: rank, device, process group, seed, output folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from orchestra.train import environment
from orchestra.train.reporting import phase

_HALF_AN_HOUR = 1800.0


class Refused(Exception):
    """Training cannot start like this. The message says why and what would work."""


@dataclass(frozen=True)
class World:
    """One process and the others of the same training."""

    rank: int
    local_rank: int
    size: int
    device: Any
    """A torch.device: this process's own GPU, or the CPU."""
    backend: str
    output_dir: Path

    @property
    def is_first(self) -> bool:
        """Is this the one process that prints and writes for all?"""
        return self.rank == 0

    def total(self, tensor: Any) -> Any:
        """The sum of a tensor over all processes, in place."""
        import torch.distributed as dist

        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def close(self) -> None:
        """Leave the process group, at the end of a run that went well.

        Not after a failure: it would wait for ranks that are gone.
        """
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


def init(output_dir: str | Path, *, seed: int | None = None, timeout: float = _HALF_AN_HOUR) -> World:
    """Find this process's device, join the process group that torchrun describes, seed torch, make the output folder.

    Without torchrun's variables it is a world of one. ORCHESTRA_BACKEND picks the backend (and `gloo` the CPU);
    otherwise there is one GPU for each local process and nccl, or the CPU and gloo. ORCHESTRA_OUTPUT_DIR wins over
    `output_dir`. All processes get the same seed. Raises `Refused` where that cannot be.
    """
    folder = _make(environment.output_dir() or Path(output_dir))
    with phase("init", limit=timeout):
        import torch
        import torch.distributed as dist

        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        device, backend = _device(torch, os.environ.get("ORCHESTRA_BACKEND"), local_rank)
        if seed is not None:
            torch.manual_seed(seed)
        rank, size = 0, 1
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            own_gpu = device if device.type == "cuda" else None
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout), device_id=own_gpu)
            rank, size = dist.get_rank(), dist.get_world_size()
    return World(rank, local_rank, size, device, backend, folder)


def _device(torch: Any, backend: str | None, local_rank: int) -> tuple[Any, str]:
    gpus = 0 if backend == "gloo" else torch.cuda.device_count()
    if backend is None:
        backend = "nccl" if gpus else "gloo"
    if backend == "gloo":
        return torch.device("cpu"), backend
    if local_rank >= gpus:
        raise Refused(
            f"No CUDA GPUs are available for local rank {local_rank}: the backend is {backend} and torch sees {gpus} "
            f"GPU{'' if gpus == 1 else 's'} here. Start at most {gpus} processes on this node, or set "
            "ORCHESTRA_BACKEND=gloo to train on the CPU."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device, backend


def _make(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"the output folder {folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Refused(f"the output folder {folder} is not writable for user {os.getuid()}")
    return folder.resolve()
