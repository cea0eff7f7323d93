"""States whose tensors are spread over ranks: what one rank holds of them, and putting them together again.

A sharded checkpoint is one file a rank, `shard-<rank>.pt`. Each holds this rank's pieces of all distributed tensors in
the order in which the state is walked; rank 0's also the rest of the state. A piece knows where in the whole tensor it
belongs, so that any other division can be read from them: another number of ranks, or none at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATE = "state.pt"
_MARK = "orchestra.sharded"


def shard_name(rank: int) -> str:
    """The file of one rank."""
    return f"shard-{rank:05}.pt"


def is_sharded(state: Any) -> bool:
    """Is any tensor in it distributed?"""
    return any(_is_distributed(leaf) for leaf in leaves(state))


def leaves(state: Any) -> Iterator[Any]:
    """Everything in a state that is not a container, in one order on all ranks."""
    if isinstance(state, Mapping):
        for value in state.values():
            yield from leaves(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from leaves(value)
    else:
        yield state


def replaced(state: Any, change: Callable[[Any], Any]) -> Any:
    """The state with each leaf changed. Containers become plain ones: a checkpoint must not need anyone's classes."""
    if isinstance(state, Mapping):
        return {key: replaced(value, change) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        values = [replaced(value, change) for value in state]
        return tuple(values) if isinstance(state, tuple) else values
    return change(state)


def own_part(state: Any, rank: int) -> dict[str, Any]:
    """What this rank writes of a sharded state."""
    pieces: list[dict[str, Any] | None] = []

    def mark(leaf: Any) -> Any:
        if not _is_distributed(leaf):
            return leaf
        pieces.append(_piece(leaf))
        return {_MARK: len(pieces) - 1, "shape": list(leaf.shape), "dtype": leaf.dtype}

    marked = replaced(state, mark)
    return {"pieces": pieces, "state": marked} if rank == 0 else {"pieces": pieces}


@dataclass(frozen=True)
class Sharded:
    """A tensor in pieces, on disk."""

    shape: tuple[int, ...]
    dtype: Any
    pieces: Sequence[Mapping[str, Any]]

    def region(self, offset: Sequence[int], out: Any) -> None:
        """Copy the part of the whole that begins at `offset` and has the shape of `out`."""
        for piece in self.pieces:
            local = piece["local"]
            theirs, ours = [], []
            for begin, size, from_, length in zip(offset, out.shape, piece["offset"], local.shape):
                first, last = max(begin, from_), min(begin + size, from_ + length)
                theirs.append(slice(first - from_, last - from_))
                ours.append(slice(first - begin, last - begin))
            if all(part.stop > part.start for part in ours):
                out[tuple(ours)].copy_(local[tuple(theirs)])

    def whole(self) -> Any:
        """The tensor itself, on the CPU."""
        import torch

        out = torch.empty(self.shape, dtype=self.dtype)
        self.region([0] * len(self.shape), out)
        return out


def read(checkpoint: Path, map_location: Any = "cpu") -> Any:
    """The state in a checkpoint's folder, with `Sharded` where its tensors are in pieces.

    Files are mapped, not read: what nobody asks for costs nothing. A mapped file that keep-last-N then deletes stays
    readable.
    """
    import torch

    if (checkpoint / STATE).exists():
        return torch.load(checkpoint / STATE, map_location=map_location, weights_only=True)
    files = sorted(checkpoint.glob("shard-*.pt"))
    shards = [torch.load(file, map_location="cpu", weights_only=True, mmap=True) for file in files]

    def unmark(value: Any) -> Any:
        if isinstance(value, dict) and _MARK in value:
            index = value[_MARK]
            pieces = [shard["pieces"][index] for shard in shards if shard["pieces"][index] is not None]
            return Sharded(tuple(value["shape"]), value["dtype"], pieces)
        if isinstance(value, dict):
            return {key: unmark(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(unmark(entry) for entry in value)
        return value

    return unmark(shards[0]["state"])


def whole(state: Any) -> Any:
    """The state with every tensor put together."""
    return replaced(state, lambda leaf: leaf.whole() if isinstance(leaf, Sharded) else leaf)


def fill(target: Any, saved: Any) -> Any:
    """`saved`, with its tensors copied into those that `target` has in the same places, however they are divided."""
    import torch

    if isinstance(target, Mapping) and isinstance(saved, Mapping):
        return {key: fill(target[key], value) if key in target else whole(value) for key, value in saved.items()}
    if isinstance(target, (list, tuple)) and isinstance(saved, (list, tuple)) and len(target) == len(saved):
        return type(saved)(fill(mine, value) for mine, value in zip(target, saved))
    if not isinstance(target, torch.Tensor):
        return whole(saved)
    shape = tuple(saved.shape) if isinstance(saved, (torch.Tensor, Sharded)) else None
    if shape != tuple(target.shape):
        raise ValueError(f"a tensor of shape {tuple(target.shape)} cannot be filled with one of shape {shape}")
    with torch.no_grad():
        offset, local = _place(target) if _is_distributed(target) else ([0] * target.dim(), target)
        if isinstance(saved, Sharded):
            saved.region(offset, local)
        else:
            local.copy_(saved[tuple(slice(begin, begin + size) for begin, size in zip(offset, local.shape))])
    return target


def _is_distributed(leaf: Any) -> bool:
    return hasattr(leaf, "to_local") and hasattr(leaf, "device_mesh")


def _piece(tensor: Any) -> dict[str, Any] | None:
    """None for a copy that another rank writes."""
    coordinates = tensor.device_mesh.get_coordinate()
    copies = [place for place, one in zip(tensor.placements, coordinates) if place.is_replicate() and one > 0]
    offset, local = _place(tensor)
    return None if copies else {"offset": offset, "local": local}


def _place(tensor: Any) -> tuple[list[int], Any]:
    """Where this rank's part of a distributed tensor begins, and the part."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return [int(begin) for begin in offset], tensor.to_local()
