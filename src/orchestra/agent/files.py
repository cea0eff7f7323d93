"""Small JSON files that several processes share."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; None where there is none, or not (yet) a whole one."""
    try:
        # NaN is no JSON; a rank that writes it all the same must not make the agent pass it on.
        data = json.loads(path.read_bytes().decode("utf-8"), parse_constant=lambda _: None)
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Replaces the file: a reader sees the old object or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(data), "utf-8")
    temporary.replace(path)


def show_file(path: Path | None, there: bool) -> None:
    """A file whose being there, and whose age, tells something: for probes that can only look."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.touch() if there else path.unlink()


def remove(path: Path) -> None:
    """Removes the file if it is there."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
