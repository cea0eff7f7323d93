"""Writing one checkpoint, from draft to published. Runs in the training process or in the writer; no collectives.

Each rank that has something to write puts its file and then a note into the draft folder; rank 0 waits for all notes,
writes the manifest and renames. Ranks meet only in the folder.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from orchestra.train import pieces
from orchestra.train.durable import sync_folder, write_json_durably
from orchestra.train.fencing import Fence
from orchestra.train.manifest import MANIFEST, TEMPORARY, Manifest, Part, Position, chain, next_position, positions

LATEST, BEST = "latest", "best"
_NOTE = "note-"
_LOOK_AGAIN = 0.02
_ATTEMPTS = 100


class NotWritten(Exception):
    """A rank could not write its part."""


@dataclass(frozen=True)
class Task:
    """One checkpoint that is to be written by `writers` ranks."""

    folder: Path
    step: int
    fence: Fence
    rank: int
    writers: int
    world_size: int
    attempt: int
    keep: int
    timeout: float
    metric: float | None = None
    exports: tuple[Path, ...] = ()

    @property
    def draft(self) -> Path:
        """The folder it is written in. The same on all ranks, and no other attempt's."""
        return self.folder / f"{TEMPORARY}step-{self.step:08}-{self.fence.number}-{self.fence.token[:6]}"


def perform(task: Task, write: Callable[[Path], dict[str, Part]], alone: Callable[[], bool] = lambda: False) -> str:
    """Write this rank's part by `write`, and on rank 0 publish when all parts are there. Returns the folder's name.

    `alone()` says that the training is gone, so that nobody should wait long for other ranks. Raises OSError,
    RuntimeError, `NotWritten` or `TakenOver`; nothing of the draft is left then.
    """
    task.draft.mkdir(parents=True, exist_ok=True)
    try:
        try:
            parts = write(task.draft)
        except (OSError, RuntimeError) as error:
            _leave_note(task, {"error": str(error)})
            raise
        if task.rank != 0:
            _leave_note(task, {"files": {name: [part.size, part.crc32] for name, part in parts.items()}})
            return ""
        for rank in range(1, task.writers):
            parts |= _wait_for_note(task, rank, alone)
        return _publish(task, parts).name
    except BaseException:
        if task.rank == 0:
            shutil.rmtree(task.draft, ignore_errors=True)
        raise


def write_state(state: Mapping[str, Any], rank: int, sharded: bool) -> Callable[[Path], dict[str, Part]]:
    """Writes a state, or this rank's part of it, into one file."""

    def write(draft: Path) -> dict[str, Part]:
        name = pieces.shard_name(rank) if sharded else pieces.STATE
        return {name: save_counted(draft / name, state)}

    return write


def save_counted(path: Path, content: Any) -> Part:
    """torch.save, on disk when it returns. Gives size and checksum without reading the file again."""
    import torch

    with path.open("wb") as file:
        counted = _Counted(file)
        torch.save(content, counted)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    return counted.part()


def count(folder: Path) -> dict[str, Part]:
    """Size and checksum of all files that lie in a folder already; makes them durable."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and name != MANIFEST and not name.startswith(_NOTE):
            checksum = 0
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    checksum = zlib.crc32(chunk, checksum)
                os.fsync(file.fileno())
            found[name] = Part(path.stat().st_size, checksum)
    return found


def point(folder: Path, name: str, target: str) -> None:
    """Switch `latest` or `best` in one move."""
    draft = folder / f"{TEMPORARY}{name}"
    draft.unlink(missing_ok=True)
    try:
        draft.symlink_to(target)
    except OSError:  # a file system without links: a file that holds the name
        draft.write_text(target + "\n")
    draft.replace(folder / name)


def pointed_at(folder: Path, name: str) -> Path | None:
    """What `latest` or `best` points at, if it is there."""
    path = folder / name
    if path.is_file():
        path = folder / path.read_text().strip()
    return path.resolve() if path.is_dir() else None


def _publish(task: Task, parts: dict[str, Part]) -> Position:
    for note in task.draft.glob(_NOTE + "*"):
        note.unlink()
    manifest = Manifest(task.step, task.world_size, task.attempt, parts, task.fence.number, task.metric)
    manifest.write(task.draft)
    sync_folder(task.draft)
    task.fence.check(task.folder)
    position = _rename(task)
    sync_folder(task.folder)
    point(task.folder, LATEST, position.name)
    if task.metric is not None and _is_best(task):
        point(task.folder, BEST, position.name)
    for path in task.exports:
        _export(task.folder / position.name, path)
    _drop_old(task)
    return position


def _rename(task: Task) -> Position:
    for _ in range(_ATTEMPTS):
        position = next_position(task.folder, task.step)
        try:
            task.draft.rename(task.folder / position.name)
            return position
        except OSError:  # an older attempt has just published the same step
            if not (task.folder / position.name).exists():
                raise
    raise NotWritten(f"no free name for step {task.step} in {task.folder}")


def _is_best(task: Task) -> bool:
    best = pointed_at(task.folder, BEST)
    if best is None:
        return task.metric is not None and task.metric == task.metric
    before = Manifest.read(best).metric
    return task.metric is not None and (before is None or task.metric < before)


def _export(checkpoint: Path, path: Path) -> None:
    """The checkpoint as one plain file: another name where it is one already, else put together from its pieces."""
    draft = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        if (checkpoint / pieces.STATE).exists():
            try:
                os.link(checkpoint / pieces.STATE, draft)
            except OSError:
                shutil.copyfile(checkpoint / pieces.STATE, draft)
        else:
            save_counted(draft, pieces.whole(pieces.read(checkpoint)))
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _drop_old(task: Task) -> None:
    """Delete what is beyond the last few. Only the newest attempt may: an older one might delete its origin."""
    task.fence.check(task.folder)
    mine = chain(task.folder)
    best = pointed_at(task.folder, BEST)
    late = [position for position in positions(task.folder) if position not in mine and _is_older(task, position)]
    for position in mine[task.keep :] + late:
        path = task.folder / position.name
        if best is not None and path.resolve() == best:
            continue
        # Renamed first: killed in the middle, we leave rubbish rather than half a checkpoint.
        doomed = path.rename(task.folder / f"{TEMPORARY}old-{position.name}")
        shutil.rmtree(doomed, ignore_errors=True)


def _is_older(task: Task, position: Position) -> bool:
    try:
        return 0 < Manifest.read(task.folder / position.name).fence < task.fence.number
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _leave_note(task: Task, content: Mapping[str, object]) -> None:
    if task.rank == 0:
        return
    path = task.draft / f"{_NOTE}{task.rank}"
    draft = path.with_suffix(".tmp")
    try:
        write_json_durably(draft, content)
        draft.replace(path)
    except OSError:  # a full disk has room for an empty file, and that says enough: rank 0 need not wait
        draft.unlink(missing_ok=True)
        path.touch()
        if "error" not in content:
            raise


def _wait_for_note(task: Task, rank: int, alone: Callable[[], bool]) -> dict[str, Part]:
    path = task.draft / f"{_NOTE}{rank}"
    deadline = time.monotonic() + task.timeout
    while not path.exists():
        if time.monotonic() > deadline or alone():
            raise NotWritten(f"rank {rank} left nothing in {task.draft}")
        time.sleep(_LOOK_AGAIN)
    note = json.loads(path.read_text() or '{"error": "not even the reason could be written"}')
    if "error" in note:
        raise NotWritten(f"rank {rank} could not write: {note['error']}")
    return {name: Part(int(size), int(crc32)) for name, (size, crc32) in note["files"].items()}


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
