"""Plain trees, as people browse them: a folder to `s3://bucket/path/` and back, every file under its own name.

An upload ends with a marker, `_orchestra.json`, that names each file with its hash: all of them were there, complete
and of one round, when it was written. Each object is complete by itself at any time, but after an upload that was cut
short some are newer than the marker: who needs a *set* of files of one moment uses outputs.py. Nothing remote is ever
deleted.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from orchestra.api.problem import Invalid, Problem
from orchestra.sync.complete import Skip, complete_files
from orchestra.sync.errors import Changed, Missing
from orchestra.sync.index import Index
from orchestra.sync.landing import PARTIAL, fetch
from orchestra.sync.paths import Twins, what_is_wrong_with_path
from orchestra.sync.pieces import read_checked
from orchestra.sync.reading import Tree, hash_prefix, same_moment
from orchestra.sync.remote import PART, SMALL_AT_ONCE, Item, Remote

MARKER = "_orchestra.json"
_LARGE_AT_ONCE = 4
_SETTLED_S = 2.0

Given = TypeVar("Given")
Result = TypeVar("Result")

Progress = Callable[["Moving"], None]
"""Called now and then, from any thread but never from two at once."""


class _File(msgspec.Struct, frozen=True, array_like=True):
    hash: str
    size: int


class _Marker(msgspec.Struct, frozen=True):
    files: dict[str, _File]
    version: int = 1


@dataclass
class Moving:
    """How far a transfer is."""

    files: int = 0
    files_done: int = 0
    bytes: int = 0
    bytes_done: int = 0


@dataclass(frozen=True)
class Moved:
    """What a transfer did."""

    files: int
    """Files that were moved."""
    bytes: int
    unchanged: int
    """Files that were there already."""
    abandoned: tuple[str, ...] = ()
    """Files that changed while they were read, and others that are still being written: the next round takes them."""
    newer: tuple[str, ...] = ()
    """Files that came down whole but are not what the last marker says: they were written after it."""


class _Counter:
    """Counts what many threads do."""

    def __init__(self, sizes: Iterable[int], progress: Progress | None) -> None:
        every = list(sizes)
        self._moving = Moving(len(every), 0, sum(every), 0)
        self._progress = progress
        self._lock = threading.Lock()

    def bytes(self, count: int) -> None:
        """So many more bytes."""
        self._add(count, 0)

    def file(self) -> None:
        """One more file."""
        self._add(0, 1)

    def _add(self, count: int, files: int) -> None:
        with self._lock:
            self._moving.bytes_done += count
            self._moving.files_done += files
            if self._progress:
                self._progress(self._moving)


def up(
    folder: Path,
    remote: Remote,
    prefix: str = "",
    *,
    quiet: float = 0.0,
    growing: tuple[str, ...] = (),
    skip: Skip | None = None,
    index: Index | None = None,
    progress: Progress | None = None,
) -> Moved:
    """Upload the complete files of a folder, those that are not there yet, and then the marker.

    `quiet` seconds without a touch make a file complete (complete.py); 0 when its writers are gone. Files whose name
    matches `growing` (logs) go as far as they are, for their beginning never changes. A file that changes while it
    is read does not appear, and is told in `abandoned`. `skip` is true of folders that somebody else takes care of.
    """
    known = index or Index.of(folder)
    before, there = _marker(remote, prefix), {item.key: item.size for item in remote.listing(prefix)}
    looked = _look(folder, known, quiet, growing, skip)
    todo = [
        one for one in looked.ready
        if before.get(one.path) != one.file or there.get(_key(prefix, one.path)) != one.file.size
    ]  # fmt: skip
    counter = _Counter((one.file.size for one in todo), progress)

    def send(one: _Sending) -> str | None:
        path = folder / one.path
        key = _key(prefix, one.path)
        try:
            remote.put(
                key, lambda: read_checked(path, one.file.size, one.file.hash, one.was, counter.bytes), one.file.size
            )
            if one.was is not None and not same_moment(one.was, path.lstat()):
                return one.path
        except (Changed, FileNotFoundError):
            return one.path
        counter.file()
        return None

    lost = {path for path in _both(remote, send, todo, lambda one: one.file.size) if path is not None}
    still = {path: file for path, file in before.items() if _key(prefix, path) in there}
    promised = {path: file for path, file in (still | looked.files()).items() if path not in lost}
    if promised != before:
        data = msgspec.json.format(msgspec.json.encode(_Marker(promised)))
        remote.put(_key(prefix, MARKER), lambda: [data], len(data))
    sent = [one.file.size for one in todo if one.path not in lost]
    left = tuple(sorted({*looked.waiting, *lost}))
    return Moved(len(sent), sum(sent), len(looked.ready) - len(todo), left)


@dataclass(frozen=True)
class _Sending:
    path: str
    file: _File
    was: os.stat_result | None
    """What it was when it was hashed; None for a file that may grow."""


@dataclass(frozen=True)
class _Looked:
    ready: list[_Sending]
    waiting: list[str]

    def files(self) -> dict[str, _File]:
        return {one.path: one.file for one in self.ready}


def _look(folder: Path, index: Index, quiet: float, growing: tuple[str, ...], skip: Skip | None) -> _Looked:
    """What may go up, with its hashes."""
    outputs = complete_files(folder, time.time(), quiet=quiet, skip=skip)
    ready: list[_Sending] = []
    waiting: list[str] = []
    with Tree(folder) as tree:
        for one in outputs.ready:
            try:
                digest = index.hash_of(one.path, one.stat, lambda path=one.path: tree.hash(path))  # type: ignore[misc]
                ready.append(_Sending(one.path, _File(digest, one.stat.st_size), one.stat))
            except Changed:
                waiting.append(one.path)
        for path in outputs.waiting:
            if not any(fnmatch.fnmatch(Path(path).name, pattern) for pattern in growing):
                waiting.append(path)
                continue
            with contextlib.suppress(Changed), tree.open(path) as descriptor:
                size = os.fstat(descriptor).st_size
                ready.append(_Sending(path, _File(hash_prefix(descriptor, size), size), None))
    index.save()
    return _Looked(ready, waiting)


def down(remote: Remote, prefix: str, folder: Path, *, progress: Progress | None = None) -> Moved:
    """Download everything below a prefix, what is not here yet, each file complete or not there.

    A prefix that is itself an object is that one file. A file is taken to be here if its size and time are those of
    the object, which is how we leave it: a file that a power cut left short is fetched again, so nobody waits for the
    disk here. Names that lead out of the folder, or are one on some disks, refuse the whole transfer before the first
    byte.
    """
    items = [item for item in remote.listing(prefix) if _path(prefix, item) != MARKER]
    if not items:
        only = remote.look(prefix) if prefix else None
        if only is None:
            raise Missing(f"there is nothing at {remote.url}/{prefix}".rstrip("/"))
        items, prefix = [only], prefix.rpartition("/")[0]
    _refuse_names([_path(prefix, item) for item in items])
    promised = _marker(remote, prefix)
    folder.mkdir(parents=True, exist_ok=True)
    todo = [item for item in items if not _is_here(folder / _path(prefix, item), item)]
    counter = _Counter((item.size for item in todo), progress)
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    newer: list[str] = []

    def take(item: Item) -> None:
        path = _path(prefix, item)
        digest = fetch(remote, item.key, item.size, root, path, etag=item.etag, count=counter.bytes, durable=False)
        if path in promised and promised[path].hash != digest:
            newer.append(path)
        stamp = item.modified.timestamp()
        os.utime(folder / path, (stamp, stamp), follow_symlinks=False)
        counter.file()

    try:
        _both(remote, take, todo, lambda item: item.size)
    finally:
        os.close(root)
    moved = sum(item.size for item in todo)
    return Moved(len(todo), moved, len(items) - len(todo), newer=tuple(sorted(newer)))


def _both(
    remote: Remote, work: Callable[[Given], Result], given: list[Given], size: Callable[[Given], int]
) -> list[Result]:
    """Small files many at once; large ones few, for each of them is already several requests."""
    small = [one for one in given if size(one) <= PART]
    large = [one for one in given if size(one) > PART]
    return [*remote.each(work, small, SMALL_AT_ONCE), *remote.each(work, large, _LARGE_AT_ONCE)]


def _marker(remote: Remote, prefix: str) -> dict[str, _File]:
    """What the last upload promised; nothing where there was none, or it is not ours."""
    try:
        return msgspec.json.decode(remote.get(_key(prefix, MARKER)), type=_Marker).files
    except (Missing, msgspec.MsgspecError):
        return {}


def _key(prefix: str, path: str) -> str:
    return f"{prefix.strip('/')}/{path}" if prefix.strip("/") else path


def _path(prefix: str, item: Item) -> str:
    return item.key[len(prefix.strip("/")) + 1 :] if prefix.strip("/") else item.key


def _is_here(path: Path, item: Item) -> bool:
    try:
        about = path.lstat()
    except OSError:
        return False
    written = item.modified.timestamp()
    # Servers count in whole seconds: an object that was replaced within the second in which we read it looks the
    # same. What we fetched that soon after it was written is fetched again. (Not if their clock is behind ours.)
    settled = about.st_ctime > written + _SETTLED_S
    return about.st_size == item.size and abs(about.st_mtime - written) < 1e-3 and settled


def _refuse_names(paths: list[str]) -> None:
    twins, every = Twins(), set(paths)
    problems = []
    for path in paths:
        wrong = what_is_wrong_with_path(path) or twins.add(path)
        inside = next((p for p in _above(path) if p in every), None)
        if wrong is None and inside is not None:
            wrong = f"{inside} is an object and would have to be a folder too"
        if wrong is None and path.endswith(PARTIAL):
            wrong = f"names that end in {PARTIAL} are those of unfinished downloads"
        if wrong:
            problems.append(Problem(ascii(path)[1:-1], wrong, "rename the object"))
    if problems:
        raise Invalid(problems[:20])


def _above(path: str) -> Iterable[str]:
    while (slash := path.rfind("/")) >= 0:
        path = path[:slash]
        yield path
