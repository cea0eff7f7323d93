"""Hashes of files that have not changed since they were last read, so that an unchanged tree costs milliseconds."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from orchestra.sync.hashing import hash_of

_VERSION = 1
_MARGIN_NS = 2_000_000_000


class _Known(msgspec.Struct, array_like=True, frozen=True, gc=False):
    size: int
    mtime: int
    ctime: int
    inode: int
    hashed: int
    """When we began to read it, in nanoseconds of the wall clock."""
    hash: str


class _File(msgspec.Struct):
    version: int
    root: str
    known: dict[str, _Known]


class Index:
    """What is known of one folder's files.

    A hash is used again only if size, mtime, ctime and inode are the same *and* the last change was at least two
    seconds before the file was read. File systems count time in steps (of up to two seconds): within a step an
    edit leaves no trace, so what is that young is read again. ctime cannot be set back by a program, so neither
    `touch -r` nor an unpacked archive deceives it. Not covered: a clock that runs backwards, or a file server
    whose clock is behind ours by more than the margin.
    """

    def __init__(self, file: Path | None, folder: Path, now: Callable[[], int] = time.time_ns) -> None:
        self._file = file
        self._root = str(folder)
        self._now = now
        self._known: dict[str, _Known] = {}
        self._used: dict[str, _Known] = {}
        self._dirty = False
        if file is None:
            return
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            loaded = msgspec.msgpack.decode(file.read_bytes(), type=_File)
            if (loaded.version, loaded.root) == (_VERSION, self._root):
                self._known = loaded.known

    @staticmethod
    def of(folder: Path, cache: Path | None = None) -> Index:
        """The index of a folder, in the user's cache; where there is no home for one, nothing is remembered."""
        resolved = folder.resolve()
        if cache is None:
            try:
                home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
            except RuntimeError:  # a container with a user that nobody knows
                return Index(None, resolved)
            cache = Path(home) / "orchestra" / "index"
        return Index(cache / hash_of(os.fsencode(resolved))[:32], resolved)

    def hash_of(self, path: str, about: os.stat_result, read: Callable[[], tuple[str, os.stat_result]]) -> str:
        """The file's hash; calls `read` only if it is not known for certain."""
        known = self._known.get(path)
        if known is not None and _is_current(known, about):
            self._used[path] = known
            return known.hash
        began = self._now()
        digest, about = read()
        self._used[path] = _Known(about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino, began, digest)
        self._dirty = True
        return digest

    def save(self) -> None:
        """Keep what is known for the next time. A cache: failing to write it is no failure."""
        if self._file is None or (not self._dirty and len(self._used) == len(self._known)):
            return
        data = msgspec.msgpack.encode(_File(_VERSION, self._root, self._used))
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, draft = tempfile.mkstemp(dir=self._file.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                Path(draft).replace(self._file)
            except OSError:
                Path(draft).unlink(missing_ok=True)


def _is_current(known: _Known, about: os.stat_result) -> bool:
    return (
        known.size == about.st_size
        and known.mtime == about.st_mtime_ns
        and known.ctime == about.st_ctime_ns
        and known.inode == about.st_ino
        and max(known.mtime, known.ctime) < known.hashed - _MARGIN_NS
    )
