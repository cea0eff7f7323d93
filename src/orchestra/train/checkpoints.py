"""Checkpoints that are complete or not there: saving, keeping the last few, resuming from the newest."""

from __future__ import annotations

import logging
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

from orchestra.train import environment
from orchestra.train.durable import sync_folder
from orchestra.train.manifest import (
    TEMPORARY,
    Manifest,
    Part,
    Position,
    choose,
    left_behind,
    next_position,
    positions,
    set_aside,
)
from orchestra.train.reporting import phase, progress

_log = logging.getLogger("orchestra.train")
_HALF_AN_HOUR = 1800.0
_STATE = "state.pt"
_LATEST = "latest"


class SaveFailed(Exception):
    """A checkpoint could not be written. The ones before it are untouched."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint read back."""

    step: int
    path: Path
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one training, in one folder that all ranks see.

    `save` and `load` are called on all ranks alike. Rank 0 writes, for under DDP all ranks hold the same state;
    the others wait for it and learn whether it went well. A process killed at any moment leaves the newest complete
    checkpoint as it was.

    Coordination, not fencing: two trainings that write into one folder at once do not damage a checkpoint, but each
    may resume from the other's.
    """

    def __init__(self, folder: str | Path, *, keep: int = 3, timeout: float = _HALF_AN_HOUR) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: at least the newest checkpoint must be kept")
        self.folder = Path(folder)
        self._keep = keep
        self._limit = timeout
        self._ranks = _Ranks(timeout)
        self._newest: Loaded | None = None

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write the state after this step and return its folder, which is complete and on disk by then.

        What was already saved (or loaded) by this process for this step is not written again. Raises `SaveFailed`
        on all ranks if rank 0 could not write.
        """
        if self._newest is not None and self._newest.step == step:
            return self._newest.path
        position, error = None, None
        with phase("save", self._limit):
            if self._ranks.rank == 0:
                try:
                    position = self._write(step, state)
                except (OSError, RuntimeError) as failure:  # torch turns some write errors into RuntimeError
                    error = failure
            position = self._ranks.share(position)
        if position is None:
            raise SaveFailed(
                f"checkpoint of step {step} not written to {self.folder}: {error or 'see rank 0'}"
            ) from error
        return self._remember(Loaded(position.step, self.folder / position.name, {})).path

    def load(self, map_location: Any = "cpu") -> Loaded | None:
        """The newest complete checkpoint, the same on all ranks, or None where there is none.

        Newer ones that are not complete are set aside under another name, with the reason in the log.
        """
        import torch

        with phase("load", self._limit):
            position = self._ranks.share(self._select() if self._ranks.rank == 0 else None)
            if position is None:
                return None
            path = self.folder / position.name
            state = torch.load(path / _STATE, map_location=map_location, weights_only=True)
        return self._remember(Loaded(position.step, path, state))

    def start_over(self) -> Path | None:
        """Move all checkpoints that are there out of the way. Returns where they are now, if there were any."""
        old = [self.folder.with_name(f"{self.folder.name}.old-{number}") for number in range(1, 1000)]
        moved = None
        if self._ranks.rank == 0 and positions(self.folder):
            moved = self.folder.rename(next(path for path in old if not path.exists()))
        self._ranks.share(None)
        return moved

    def _remember(self, newest: Loaded) -> Loaded:
        self._newest = Loaded(newest.step, newest.path, {})
        progress(checkpoint_step=newest.step)
        return newest

    def _select(self) -> Position | None:
        choice = choose(self.folder)
        for position, reason in choice.unfit.items():
            aside = set_aside(self.folder, position)
            _log.warning("checkpoint %s is not used and now called %s: %s", position.name, aside.name, reason)
        for path in left_behind(self.folder):
            shutil.rmtree(path, ignore_errors=True)
        return choice.position

    def _write(self, step: int, state: Mapping[str, Any]) -> Position:
        import torch

        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{TEMPORARY}step-{step:08}-{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            with (draft / _STATE).open("wb") as file:
                counted = _Counted(file)
                torch.save(dict(state), counted)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            Manifest(step, self._ranks.size, environment.attempt(), {_STATE: counted.part()}).write(draft)
            sync_folder(draft)
            position = next_position(self.folder, step)
            draft.rename(self.folder / position.name)
            sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self._point_latest_at(position)
        self._drop_old()
        return position

    def _point_latest_at(self, position: Position) -> None:
        draft, latest = self.folder / f"{TEMPORARY}{_LATEST}", self.folder / _LATEST
        draft.unlink(missing_ok=True)
        try:
            draft.symlink_to(position.name)
        except OSError:  # a file system without links: a file that holds the name
            draft.write_text(position.name + "\n")
        draft.replace(latest)

    def _drop_old(self) -> None:
        for position in positions(self.folder)[self._keep :]:
            # Renamed first: killed in the middle, we leave rubbish rather than half a checkpoint.
            doomed = (self.folder / position.name).rename(self.folder / f"{TEMPORARY}old-{position.name}")
            shutil.rmtree(doomed, ignore_errors=True)


class _Counted:
    """A file that knows the size and checksum of what went into it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = 0
        self._crc32 = 0

    def write(self, data: Any) -> int:
        written = self._file.write(data)
        self._size += written
        self._crc32 = zlib.crc32(data, self._crc32)
        return written

    def flush(self) -> None:
        self._file.flush()

    def part(self) -> Part:
        return Part(self._size, self._crc32)


class _Ranks:
    """What rank 0 tells the others, on a CPU group of its own: a save may outlast the training's own time limit."""

    def __init__(self, timeout: float) -> None:
        import torch.distributed as dist

        joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.size = dist.get_world_size() if joined else 1
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout)) if self.size > 1 else None

    def share(self, position: Position | None) -> Position | None:
        """Rank 0's position, on all ranks."""
        if self._group is None:
            return position
        import torch
        import torch.distributed as dist

        told = torch.tensor([position.step, position.repeat] if position else [-1, -1])
        dist.broadcast(told, src=0, group=self._group)
        step, repeat = told.tolist()
        return Position(step, repeat) if step >= 0 else None
