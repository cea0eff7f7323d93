"""Which files of an output folder are complete, so that nothing half written is ever uploaded.

A file is complete when its writer said so: our own library and other careful ones rename at the end; a distributed
checkpoint is complete with its `.metadata`. Of foreign files we only know that nobody has touched them for a while.
Whoever uploads one looks again afterwards (`Changed`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_NEVER = re.compile(r"(?:tmp-.*|\.tmp.*|incomplete-.*|\.partial-.*|.*\.(?:tmp|part|partial|crdownload|lock))\Z")
_SHARD = re.compile(r"__\d+_\d+\.distcp\Z")
_DCP_END = ".metadata"
_OUR_END = "manifest.json"
_OURS = re.compile(r"step-\d+(?:\.\d+)?\Z")
QUIET_S = 20.0

Skip = Callable[[Path], bool]


@dataclass(frozen=True)
class Ready:
    """A file that may be uploaded, as it was when it was looked at."""

    path: str
    stat: os.stat_result


@dataclass(frozen=True)
class Outputs:
    """What an output folder holds."""

    ready: tuple[Ready, ...]
    waiting: tuple[str, ...]
    """Files that are still being written, for all we know: the next round takes them."""


def complete_files(folder: Path, now: float, *, quiet: float = QUIET_S, skip: Skip | None = None) -> Outputs:
    """Files of a folder that are complete. `now` is the wall clock; `quiet=0` when all writers are known to be gone.

    Links are not followed and not uploaded, folders that `skip` is true of not looked at. Names of unfinished files
    (`*.tmp`, `tmp-*`, `*.part`) never are.
    """
    ready: list[Ready] = []
    waiting: list[str] = []
    for at, folders, files in os.walk(folder):
        kept = (name for name in folders if not _NEVER.match(name))
        folders[:] = sorted(name for name in kept if skip is None or not skip(Path(at, name)))
        ended = _ended(Path(at), files)
        begun = ended is None and any(_SHARD.match(name) for name in files)
        for name in sorted(files):
            path = Path(at) / name
            relative = path.relative_to(folder).as_posix()
            try:
                about = path.lstat()
            except FileNotFoundError:
                continue
            if not stat.S_ISREG(about.st_mode) or _NEVER.match(name):
                continue
            touched = max(about.st_mtime, about.st_ctime)
            # A checkpoint's end marker tells of the files before it, not of one that is written after it.
            still = touched <= now - quiet or (ended is not None and touched <= ended)
            if begun or not still:
                waiting.append(relative)
            else:
                ready.append(Ready(relative, about))
    return Outputs(tuple(ready), tuple(waiting))


def _ended(folder: Path, files: list[str]) -> float | None:
    """When a checkpoint folder was finished, by its marker; None where it has none."""
    marker = _DCP_END if _DCP_END in files else _OUR_END if _OURS.match(folder.name) and _OUR_END in files else None
    if marker is None:
        return None
    try:
        about = (folder / marker).lstat()
    except FileNotFoundError:
        return None
    return max(about.st_mtime, about.st_ctime)
