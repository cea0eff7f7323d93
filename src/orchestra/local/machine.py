"""What this machine has: GPUs, cores, memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from orchestra.api import TorchrunQueue
from orchestra.api.base import from_builtins
from orchestra.api.quantity import binary_quantity

LOCAL_QUEUE = "local"


@dataclass(frozen=True)
class Machine:
    """The slots that jobs share."""

    gpus: tuple[int, ...]
    """Indexes of the GPUs that may be used."""
    cores: int
    memory: int
    """Bytes."""

    @classmethod
    def here(cls) -> Machine:
        """This one, as far as this process may use it."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(_gpus(), len(os.sched_getaffinity(0)), memory)

    def queue(self) -> TorchrunQueue:
        """The built-in queue `local`: this machine as one node."""
        node = {"gpus": len(self.gpus), "cpus": self.cores, "memory": str(binary_quantity(self.memory))}
        return from_builtins({"metadata": {"name": LOCAL_QUEUE}, "spec": {"nodeResources": node}}, TorchrunQueue)


def _gpus() -> tuple[int, ...]:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return tuple(int(word) for word in given.split(",") if word.strip().isdigit())
    if shutil.which("nvidia-smi") is None:
        return ()
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True)
    except (subprocess.SubprocessError, OSError):
        return ()
    return tuple(range(sum(line.startswith("GPU ") for line in listed.stdout.splitlines())))
