"""What the agent and torchrun tell a rank (docs/worker-contract.md). Read anew at each call; absent means by hand."""

from __future__ import annotations

import os
from pathlib import Path


def progress_file() -> Path | None:
    """Where progress goes."""
    return _path("ORCHESTRA_PROGRESS_FILE")


def result_file() -> Path | None:
    """Where the result goes."""
    return _path("ORCHESTRA_RESULT_FILE")


def stop_file() -> Path | None:
    """The file that exists while a stop is requested."""
    return _path("ORCHESTRA_STOP_FILE")


def output_dir() -> Path | None:
    """The output folder the job file names; it wins over a script's own flag."""
    return _path("ORCHESTRA_OUTPUT_DIR")


def is_restart() -> bool:
    """Has this very job run before, so that what lies in the output folder is its own?"""
    return _number("TORCHELASTIC_RESTART_COUNT", 0) > 0 or attempt() > 1


def attempt() -> int:
    """How many times the job was started, this one included."""
    return _number("ORCHESTRA_ATTEMPT", 1)


def grace_seconds() -> float | None:
    """How long a stop may take before the worker is killed."""
    try:
        return float(os.environ["ORCHESTRA_GRACE_PERIOD_SECONDS"])
    except (KeyError, ValueError):
        return None


def _path(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value) if value else None


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default
