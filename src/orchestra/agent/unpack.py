"""An unpacked, compiled copy of the agent for its shims.

Python compiles what it imports from a zip anew each time; every rank of every restart would wait for that.
"""

from __future__ import annotations

import contextlib
import py_compile
import shutil
import zipfile
from pathlib import Path

_OF_SHIM = (
    "channel",
    "environment",
    "files",
    "lines",
    "main",
    "preload",
    "preloader",
    "processes",
    "program",
    "shim",
    "__init__",
)


def unpack(agent_file: str, target: Path) -> str:
    """Unpacks into `target`. Returns what Python can run: the copy, or the packed agent where that fails."""
    try:
        with zipfile.ZipFile(agent_file) as archive:
            shutil.rmtree(target, ignore_errors=True)  # an earlier attempt may have had another agent
            archive.extractall(target)
    except (OSError, zipfile.BadZipFile):
        return agent_file
    return str(target)


def compile_shim(target: Path) -> None:
    """Compiles what a shim imports. To be called while the launcher is still busy with its own imports."""
    for name in _OF_SHIM:
        for file in target.glob(f"*/{name}.py"):
            with contextlib.suppress(OSError, py_compile.PyCompileError):
                py_compile.compile(str(file), doraise=True)
