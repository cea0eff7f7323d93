"""A local file as the pieces of an upload, which ends in an error rather than in another content than promised."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestra.sync.errors import Changed, SyncError
from orchestra.sync.hashing import hasher
from orchestra.sync.reading import same_moment
from orchestra.sync.remote import PART

Count = Callable[[int], None]


def read_checked(
    path: Path, size: int, hash: str, was: os.stat_result | None = None, count: Count | None = None
) -> Iterator[bytes]:
    """The first `size` bytes of a file. The last piece is held back until the hash is right and, with `was`, the file
    is untouched since then: otherwise `Changed`, and an upload that reads from here leaves nothing behind.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Changed(f"{path.name} cannot be read any more: {error.strerror}") from error
    digest, left, held = hasher(), size, b""
    try:
        while left:
            piece = os.read(descriptor, min(PART, left))
            if not piece:
                raise Changed(f"{path.name} became shorter while it was uploaded")
            digest.update(piece)
            left -= len(piece)
            if held:
                yield held
                _tell(count, held)
            held = piece
        if digest.hexdigest() != hash or (was is not None and not same_moment(was, os.fstat(descriptor))):
            raise Changed(f"{path.name} changed while it was uploaded")
        yield held
        _tell(count, held)
    except OSError as error:
        raise SyncError(f"{path.name} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _tell(count: Count | None, piece: bytes) -> None:
    if count:
        count(len(piece))
