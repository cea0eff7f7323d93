"""Files of a checkpoint brought to a folder: all of them aside first, then moved in, so that none is half there."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from orchestra.sync.errors import Damaged, NoRoom, SyncError
from orchestra.sync.handles import parent_of
from orchestra.sync.landing import fetch
from orchestra.sync.reading import Tree
from orchestra.sync.remote import Remote

_AT_ONCE = 4
_ASIDE = ".partial-"


class _File(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def hash(self) -> str: ...
    @property
    def size(self) -> int: ...


def restore(
    remote: Remote, files: Iterable[_File], into: Path, name: str, count: Callable[[int], None] | None = None
) -> None:
    """Bring files to `into` from `data/<hash>`, each checked on the way. What is there already and right is kept.

    They are gathered in `.partial-<name>` and moved only when all are there: a folder that is new appears at once. An
    earlier try that was killed is continued.
    """
    every = sorted(files, key=lambda file: file.path)
    aside = into / f"{_ASIDE}{name}"
    try:
        aside.mkdir(parents=True, exist_ok=True)
        for other in into.glob(f"{_ASIDE}*"):
            if other != aside:
                shutil.rmtree(other, ignore_errors=True)
        root = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise SyncError(f"{into} cannot be written: {error.strerror}") from error
    try:
        lacking = [file for file in every if not _have(file, aside) and not _taken_over(file, into, root)]
        remote.each(
            lambda file: fetch(remote, f"data/{file.hash}", file.size, root, file.path, hash=file.hash, count=count),
            lacking, _AT_ONCE,
        )  # fmt: skip
        for folder, _, _ in os.walk(aside):
            _flush(Path(folder))
        _move_in(aside, into)
    except NoRoom:
        shutil.rmtree(aside, ignore_errors=True)  # room for the next try, perhaps of an older and smaller one
        raise
    except OSError as error:
        raise SyncError(f"the checkpoint cannot be written to {into}: {error.strerror}") from error
    finally:
        os.close(root)


def _have(file: _File, folder: Path) -> bool:
    """Whether a file is there and right."""
    try:
        if (folder / file.path).lstat().st_size != file.size:
            return False
        with Tree(folder) as tree:
            return tree.hash(file.path)[0] == file.hash
    except (OSError, SyncError):
        return False


def _taken_over(file: _File, into: Path, root: int) -> bool:
    """Use the file of an earlier attempt on this machine, if it is right; a link, so that nothing is copied."""
    if not _have(file, into):
        return False
    with contextlib.suppress(OSError), parent_of(root, file.path) as (folder, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        os.link(into / file.path, name, dst_dir_fd=folder, follow_symlinks=False)
        return True
    return False


def _move_in(source: Path, target: Path) -> None:
    """Move everything in `source` into `target`: a folder that is not there yet in one move, others entry by entry."""
    for entry in sorted(source.iterdir()):
        there = target / entry.name
        if entry.is_dir() and not entry.is_symlink():
            if there.is_symlink() or (there.exists() and not there.is_dir()):
                there.unlink()
            if there.is_dir():
                _move_in(entry, there)
                continue
        elif there.is_dir() and not there.is_symlink():
            raise Damaged(f"{there} is a folder here and a file in the checkpoint")
        if not (there.exists() and not there.is_symlink() and there.samefile(entry)):
            entry.rename(there)
    _flush(target)
    shutil.rmtree(source, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Wait until the disk has the folder's names: a file's own fsync does not cover them."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
