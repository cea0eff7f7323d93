"""Files that are either there in full or not there at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


def replace_json(path: Path, content: Mapping[str, object]) -> None:
    """Replace a file in one move: a reader sees the old content or the new, never a mixture.

    It may be lost when the machine loses power.
    """
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(json.dumps(content, allow_nan=False))
    draft.replace(path)


def write_json_durably(path: Path, content: Mapping[str, object]) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the folder's names: a file's own fsync does not cover its name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
