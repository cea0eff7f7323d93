"""Folders held open, so that a path is walked name by name and never through a link that somebody slipped in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_INSIDE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Handles:
    """A folder and those below it that were used last. For one thread; paths come in order, so few are opened twice."""

    def __init__(self, folder: Path, *, make: bool = False) -> None:
        self._make = make
        self._open: list[tuple[str, int]] = [("", os.open(folder, os.O_RDONLY | os.O_DIRECTORY))]

    def folder_of(self, path: str) -> int:
        """A handle of the folder that holds this path; good until the next call. OSError where there is none."""
        wanted = path[: path.rfind("/") + 1]
        while not wanted.startswith(self._open[-1][0]):
            os.close(self._open.pop()[1])
        here, handle = self._open[-1]
        for name in wanted[len(here) :].split("/")[:-1]:
            handle = _entered(handle, name, make=self._make)
            here = f"{here}{name}/"
            self._open.append((here, handle))
        return handle

    def close(self) -> None:
        """Close them all."""
        while self._open:
            os.close(self._open.pop()[1])


@contextmanager
def parent_of(root: int, path: str) -> Iterator[tuple[int, str]]:
    """Handle of the folder that holds a path below `root`, made where missing, and the path's last name.

    For many threads at once: nothing is shared.
    """
    *folders, name = path.split("/")
    handle = os.dup(root)
    try:
        for folder in folders:
            inner = _entered(handle, folder, make=True)
            os.close(handle)
            handle = inner
        yield handle, name
    finally:
        os.close(handle)


def _entered(handle: int, name: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=handle)
    return os.open(name, _INSIDE, dir_fd=handle)
