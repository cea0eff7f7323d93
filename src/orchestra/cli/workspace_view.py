"""What of a folder ships, as people read it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from orchestra.api.engine import EngineError
from orchestra.cli import exit_codes
from orchestra.local.submitted_code import size_text


def show_what_ships(folder: Path, include: Iterable[str], jobs: list[str]) -> int:
    """Lists every file that would ship and what would not, with the reason. Nothing is submitted."""
    from orchestra.sync.errors import SyncError
    from orchestra.sync.snapshot import limits_of, snapshot

    try:
        taken = snapshot(folder, named=include, limits=limits_of(os.environ))
    except SyncError as error:
        raise EngineError(str(error)) from error
    for entry in taken.manifest.entries:
        what = {"link": f"link to {entry.content}", "folder": "empty folder"}.get(entry.mode, size_text(entry.size))
        print(f"+ {entry.path}  {what}")
    for left in taken.left:
        print(f"- {left.path}  {left.reason}")
    more = taken.left_count - len(taken.left)
    if more:
        print(f"- ... and {more:,} more")
    for warning in taken.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    commit = f", commit {taken.commit.id[:10]}{' with changes' if taken.commit.dirty else ''}" if taken.commit else ""
    ships = f"{taken.manifest.files:,} files, {size_text(taken.manifest.bytes)}"
    print(f"snapshot {taken.id[:12]}: {ships} would ship{commit}; {taken.left_count} stay home")
    print(f"nothing was submitted ({', '.join(jobs)}); the same line without --dry-run does it")
    return exit_codes.OK
