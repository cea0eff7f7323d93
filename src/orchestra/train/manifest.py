"""Which checkpoint folders are complete: the manifest, and the choice of one to resume from. No torch here.

    checkpoints/
      step-00000016/            complete: renamed into place after its manifest was written
      step-00000032/            state.pt (or shard-00000.pt, ...) and manifest.json
      step-00000032.1/          the same step again, saved by a later attempt
      latest -> step-00000032.1 for people and tools; resuming looks at the folders themselves
      best -> step-00000016     the one with the lowest metric; it is kept
      fence/                    which attempt may publish (fencing.py)
      tmp-...                   being written or being deleted, or left behind by a killed process
      incomplete-...            set aside by a resume, with the reason in the log

A folder made by anything that does not rename at the end (a copy that was cut short, a file system without atomic
rename) is found out by its manifest: it comes last, and names each file with its size and checksum.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from orchestra.train.durable import write_json_durably
from orchestra.train.fencing import fences, numbers

MANIFEST = "manifest.json"
TEMPORARY = "tmp-"
_SET_ASIDE = "incomplete-"
_VERSION = 1
_NAME = re.compile(r"step-(\d+)(?:\.(\d+))?")
_CHUNK = 1 << 20
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, order=True)
class Position:
    """Where in a training a checkpoint belongs: a later one of the same step is newer."""

    step: int
    repeat: int = 0

    @property
    def name(self) -> str:
        """The folder's name."""
        return f"step-{self.step:08}" + (f".{self.repeat}" if self.repeat else "")


_EVERYTHING = Position(1 << 62)


@dataclass(frozen=True)
class Part:
    """One file of a checkpoint."""

    size: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint consists of."""

    step: int
    world_size: int
    attempt: int
    files: dict[str, Part] = field(default_factory=dict)
    fence: int = 0
    """The number of the attempt that published it; 0: a writer that knows no fences."""
    metric: float | None = None
    """What `best` is chosen by; lower is better."""

    def write(self, folder: Path) -> None:
        """Write it, durably. Everything it names must be on disk before."""
        files = {name: {"bytes": part.size, "crc32": f"{part.crc32:08x}"} for name, part in self.files.items()}
        content: dict[str, object] = {"version": _VERSION, "step": self.step}
        content |= {"worldSize": self.world_size, "attempt": self.attempt}
        content |= {"fence": self.fence, "metric": self.metric}
        write_json_durably(folder / MANIFEST, {**content, "files": files})

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Read it. Raises OSError, ValueError, KeyError or TypeError if it is not one."""
        content = json.loads((folder / MANIFEST).read_text())
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']} is not known here")
        files = {name: Part(int(part["bytes"]), int(part["crc32"], 16)) for name, part in content["files"].items()}
        step, size, attempt = int(content["step"]), int(content["worldSize"]), int(content["attempt"])
        return Manifest(step, size, attempt, files, int(content.get("fence", 0)), content.get("metric"))


@dataclass(frozen=True)
class Choice:
    """The checkpoint to resume from, and the newer ones that are not fit for it, each with the reason."""

    position: Position | None
    unfit: dict[Position, str]


def positions(folder: Path) -> list[Position]:
    """All published checkpoints in a folder, newest first, complete or not."""
    if not folder.is_dir():
        return []
    matches = (_NAME.fullmatch(entry.name) for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink())
    return sorted((Position(int(found[1]), int(found[2] or 0)) for found in matches if found), reverse=True)


def next_position(folder: Path, step: int) -> Position:
    """A position for a new checkpoint of this step that is newer than all others of the step."""
    repeats = [position.repeat for position in positions(folder) if position.step == step]
    return Position(step, max(repeats, default=-1) + 1)


def chain(folder: Path) -> list[Position]:
    """The checkpoints that belong to the newest attempt or to those it goes back to, newest first, complete or not.

    One whose manifest cannot be read belongs to nobody. Where only some folders were copied and the fences were not,
    a later attempt comes before an earlier one, and steps do the rest.
    """
    published = _by_fence(folder)
    begun = {fence.number: fence.resumed for fence in fences(folder)}
    left = {*begun, *published}
    found: list[Position] = []
    allowed = _EVERYTHING
    while left:
        number = max(left)
        mine = [position for position in published.get(number, []) if position <= allowed]
        found += mine
        left = {other for other in left if other < number}
        if number not in begun:
            allowed = min([allowed, *mine])
            continue
        match = _NAME.fullmatch(begun[number] or "")
        if match is None:  # it began with nothing
            return found
        allowed = Position(int(match[1]), int(match[2] or 0))
        origins = {other for other in left if allowed in published.get(other, [])}
        left = {other for other in left if other <= max(origins)} if origins else left
    return found


def highest_fence(folder: Path) -> int:
    """The number of the newest attempt that left anything here."""
    return max([0, *numbers(folder), *_by_fence(folder)])


def _by_fence(folder: Path) -> dict[int, list[Position]]:
    found: dict[int, list[Position]] = {}
    for position in positions(folder):
        try:
            found.setdefault(Manifest.read(folder / position.name).fence, []).append(position)
        except _UNREADABLE:
            continue
    return found


def choose(folder: Path) -> Choice:
    """The newest complete checkpoint of the chain. Reads the files of each candidate in full, for their checksums."""
    unfit: dict[Position, str] = {}
    for position in positions(folder):
        problem = _what_is_wrong_with_the_manifest(folder / position.name)
        if problem is not None:
            unfit[position] = problem
    for position in chain(folder):
        problem = what_is_wrong(folder / position.name)
        if problem is None:
            return Choice(position, unfit)
        unfit[position] = problem
    return Choice(None, unfit)


def last_complete(folder: str | Path) -> Path | None:
    """The newest complete checkpoint in a folder, or None. Changes nothing there."""
    position = choose(Path(folder)).position
    return Path(folder) / position.name if position else None


def set_aside(folder: Path, position: Position) -> Path:
    """Rename an unfit checkpoint, so that no later resume looks at it again. Its files are kept."""
    return set_folder_aside(folder / position.name)


def set_folder_aside(checkpoint: Path) -> Path:
    """The same, for a folder of any name."""
    number = 0
    while (aside := checkpoint.with_name(f"{_SET_ASIDE}{checkpoint.name}{f'-{number}' if number else ''}")).exists():
        number += 1
    return checkpoint.rename(aside)


def left_behind(folder: Path) -> Iterator[Path]:
    """What killed processes were writing or deleting."""
    return folder.glob(TEMPORARY + "*")


def what_is_wrong(checkpoint: Path) -> str | None:
    """Why a checkpoint is not complete, or None."""
    problem = _what_is_wrong_with_the_manifest(checkpoint)
    if problem is not None:
        return problem
    for name, part in Manifest.read(checkpoint).files.items():
        problem = _what_is_wrong_with(checkpoint / name, part)
        if problem:
            return problem
    return None


def _what_is_wrong_with_the_manifest(checkpoint: Path) -> str | None:
    try:
        Manifest.read(checkpoint)
    except FileNotFoundError:
        return f"it has no {MANIFEST}: it was not written to its end"
    except _UNREADABLE as error:
        return f"its {MANIFEST} cannot be read: {error!r}"
    return None


def _what_is_wrong_with(file: Path, expected: Part) -> str | None:
    try:
        size = file.stat().st_size
        if size != expected.size:
            return f"{file.name} has {size} bytes instead of {expected.size}"
        return None if crc32(file) == expected.crc32 else f"{file.name} is damaged: its checksum is another"
    except OSError as error:
        return f"{file.name} cannot be read: {error.strerror}"


def crc32(file: Path) -> int:
    """The checksum of a file's content."""
    checksum = 0
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
