"""Memory that the training copies a state into and the writer process reads it from.

One anonymous file in memory (memfd), mapped by both: it has no name that a killed process could leave behind, and no
part in the size of /dev/shm, which is 64 MiB in a pod unless someone asked for more. Where CUDA is used it is pinned,
so that the copy from the device runs at the speed of the bus.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra.train.pieces import replaced

_ALIGNMENT = 64
_POPULATE = 0x8000
"""MAP_POPULATE: take the pages now, not in the middle of the first save."""
_SHARE_OF_MEMORY = 0.8


class NoRoom(Exception):
    """There is not enough memory to stage a state."""


@dataclass(frozen=True)
class Staged:
    """Stands in a state for a tensor that lies in the arena."""

    offset: int
    dtype: Any
    shape: tuple[int, ...]


class Arena:
    """The memory itself, as the training sees it."""

    def __init__(self, size: int, pin: bool) -> None:
        available = available_memory()
        if size > available * _SHARE_OF_MEMORY:
            raise NoRoom(f"{size >> 20} MiB to stage a checkpoint, and {available >> 20} MiB of memory are free")
        if not hasattr(os, "memfd_create"):
            raise NoRoom("this system has no memory that two processes can share without a name (memfd)")
        import torch

        self.size = size
        self.descriptor = os.memfd_create("orchestra-checkpoint", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, size)
        self._map = mmap.mmap(self.descriptor, size, flags=mmap.MAP_SHARED | _POPULATE)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._pinned = False
        if pin:
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            self._pinned = int(runtime.cudaHostRegister(self.bytes.data_ptr(), size, 0)) == 0

    def close(self) -> None:
        """Give the memory back; the writer may still have it."""
        if self._pinned:
            import torch

            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            runtime.cudaHostUnregister(self.bytes.data_ptr())
        os.close(self.descriptor)
        del self.bytes
        with contextlib.suppress(BufferError):
            self._map.close()


def plan(state: Any) -> tuple[Any, list[tuple[Any, Staged]], int]:
    """Where each tensor would lie: the state with `Staged` in their places, the copies to make, the bytes they need.

    A tensor that occurs twice (tied weights) is staged once.
    """
    import torch

    copies: dict[Any, tuple[Any, Staged]] = {}
    end = 0

    def place(leaf: Any) -> Any:
        nonlocal end
        if not isinstance(leaf, torch.Tensor):
            return leaf
        identity = (leaf.device, leaf.data_ptr(), leaf.dtype, leaf.shape, leaf.stride())
        if leaf.numel() == 0 or identity not in copies:
            staged = Staged(end, leaf.dtype, tuple(leaf.shape))
            end += -(-leaf.numel() * leaf.element_size() // _ALIGNMENT) * _ALIGNMENT
            copies[identity if leaf.numel() else (identity, len(copies))] = (leaf, staged)
            return staged
        return copies[identity][1]

    skeleton = replaced(state, place)
    return skeleton, list(copies.values()), max(end, _ALIGNMENT)


def copy_into(arena: Arena, copies: list[tuple[Any, Staged]]) -> None:
    """Copy the tensors. When it returns the training may change them."""
    import torch

    devices = set()
    with torch.no_grad():
        for tensor, staged in copies:
            if tensor.numel():
                tensor_at(arena.bytes, staged).copy_(tensor.detach(), non_blocking=True)
                devices.add(tensor.device)
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def tensor_at(memory: Any, staged: Staged) -> Any:
    """The tensor that lies in this memory."""
    import torch

    count = 1
    for length in staged.shape:
        count *= length
    if count == 0:
        return torch.empty(staged.shape, dtype=staged.dtype)
    size = count * torch.empty((), dtype=staged.dtype).element_size()
    return memory[staged.offset : staged.offset + size].view(staged.dtype).view(staged.shape)


def unstaged(skeleton: Mapping[str, Any], memory: mmap.mmap) -> Any:
    """The state again, its tensors in the writer's memory, each with a storage of its own as torch.save wants it."""
    import torch

    seen: dict[int, Any] = {}

    def fetch(leaf: Any) -> Any:
        if not isinstance(leaf, Staged):
            return leaf
        if 0 in leaf.shape:
            return torch.empty(leaf.shape, dtype=leaf.dtype)
        if leaf.offset not in seen:
            count = 1
            for length in leaf.shape:
                count *= length
            flat = torch.frombuffer(memory, dtype=leaf.dtype, count=count, offset=leaf.offset)
            seen[leaf.offset] = flat.view(leaf.shape)
        return seen[leaf.offset]

    return replaced(skeleton, fetch)


def available_memory() -> int:
    """Bytes that this process could still take: of the machine, and of its container."""
    free = 1 << 62
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
    return max(free, 0)
