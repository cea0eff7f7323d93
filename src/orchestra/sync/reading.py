"""Reading files of a folder that somebody may be writing: a file is one moment's content, or `Changed`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestra.sync.errors import Changed, SyncError
from orchestra.sync.handles import Handles
from orchestra.sync.hashing import hash_of, hasher

_PIECE = 8 << 20


class Tree:
    """A folder to read from by relative path, through a handle and without following any link.

    A context manager. Folders stay open between reads of neighbours, for that is how trees are read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handles = Handles(folder)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self._handles.close()

    @contextmanager
    def open(self, path: str) -> Iterator[int]:
        """A regular file, open for reading. `Changed` when it is no longer one."""
        try:
            descriptor = os.open(
                path.rsplit("/", 1)[-1],
                os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK,  # a FIFO put in its place must not hold us
                dir_fd=self._handles.folder_of(path),
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Changed(f"{path} is gone since the folder was looked at") from error
        except OSError as error:
            raise SyncError(f"{path} cannot be read: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Changed(f"{path} is no longer a file")
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, path: str) -> bytes:
        """The whole content of a file that is small enough to hold."""
        with self.open(path) as descriptor:
            before = os.fstat(descriptor)
            parts = []
            while piece := os.read(descriptor, _PIECE):
                parts.append(piece)
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            if not same_moment(before, os.fstat(descriptor)) or len(data) != before.st_size:
                raise Changed(f"{path} changed while it was read")
            return data

    def hash(self, path: str) -> tuple[str, os.stat_result]:
        """Hash of a file, and what the file was when it was taken."""
        with self.open(path) as descriptor:
            before = os.fstat(descriptor)
            if before.st_size <= _PIECE:
                data = os.read(descriptor, before.st_size + 1)
                digest, length = hash_of(data), len(data)
            else:
                digest, length = _hash_in_pieces(descriptor)
            if not same_moment(before, os.fstat(descriptor)) or length != before.st_size:
                raise Changed(f"{path} changed while it was read")
            return digest, before


def _hash_in_pieces(descriptor: int) -> tuple[str, int]:
    digest, length = hasher(), 0
    while piece := os.read(descriptor, _PIECE):
        digest.update(piece)
        length += len(piece)
    return digest.hexdigest(), length


def hash_prefix(descriptor: int, size: int) -> str:
    """Hash of the first `size` bytes of a file that may go on growing. `Changed` when it is shorter."""
    digest, left = hasher(), size
    while left:
        piece = os.read(descriptor, min(_PIECE, left))
        if not piece:
            raise Changed("a file became shorter while it was read")
        digest.update(piece)
        left -= len(piece)
    return digest.hexdigest()


def same_moment(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether a file is untouched between two looks at it. A rename changes ctime and so counts as a touch."""
    return (one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino) == (
        other.st_size, other.st_mtime_ns, other.st_ctime_ns, other.st_ino,
    )  # fmt: skip
