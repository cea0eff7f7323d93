"""One object becomes one file: complete under its name, or not there."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator

from orchestra.sync.errors import Damaged, NoRoom, SyncError
from orchestra.sync.handles import parent_of
from orchestra.sync.hashing import hasher
from orchestra.sync.remote import RANGE, Remote, ahead

PARTIAL = ".partial"
_AHEAD = 4
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Count = Callable[[int], None]
"""Called with the number of bytes that came or went since the last call."""


def fetch(
    remote: Remote,
    key: str,
    size: int,
    root: int,
    path: str,
    *,
    etag: str | None = None,
    hash: str | None = None,
    count: Count | None = None,
    durable: bool = True,
) -> str:
    """Bring an object to `path` below the open folder `root`; returns its hash.

    It is written to `<path>.partial`, its hash taken on the way, flushed to disk, and renamed. Without `durable` the
    disk takes its time: right for what is looked at again before it is used. `Damaged` where size
    or hash is another, `Changed` where it is no longer the object of that etag. No link is followed.
    """
    with parent_of(root, path) as (folder, name):
        draft = name + PARTIAL
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                digest, length = hasher(), 0
                for piece in _ranges(remote, key, size, etag):
                    digest.update(piece)
                    length += len(piece)
                    _write_all(descriptor, piece)
                    if count:
                        count(len(piece))
                if length != size or (hash is not None and digest.hexdigest() != hash):
                    raise Damaged(
                        f"{remote.url}/{key} is damaged: its {'size' if length != size else 'hash'} is another"
                    )
                if durable:
                    os.fsync(file.fileno())
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            return digest.hexdigest()
        except OSError as error:
            _forget(draft, folder)
            if error.errno in _FULL:
                raise NoRoom(f"no room for {path}: {error.strerror}") from error
            raise SyncError(f"{path} cannot be written: {error.strerror}") from error
        except BaseException:
            _forget(draft, folder)
            raise


def _ranges(remote: Remote, key: str, size: int, etag: str | None) -> Iterator[memoryview]:
    """An object in order, a few ranges ahead."""
    starts = range(0, size, RANGE)
    if len(starts) <= 1:
        yield remote.view_range(key, 0, size, etag)
        return
    yield from ahead(lambda start: remote.view_range(key, start, min(start + RANGE, size), etag), starts, _AHEAD)


def _forget(draft: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(draft, dir_fd=folder)


def _write_all(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]
