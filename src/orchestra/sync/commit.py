"""Which git commit a folder is at, and whether it differs from it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_LIMIT_S = 10.0


@dataclass(frozen=True)
class Commit:
    """Where a folder stands. Dirty: changed, added or unknown files in the folder itself."""

    id: str
    dirty: bool


class CommitLookup:
    """Asks git while the caller does other work; `result()` waits for it. No git, or no repository: None."""

    def __init__(self, folder: Path) -> None:
        self._git: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            self._git = subprocess.Popen(
                # No locks: we only look. No fsmonitor: it may be a program that the repository names.
                ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder),
                 "status", "--porcelain=v2", "--branch", "--", "."],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            )  # fmt: skip

    def result(self) -> Commit | None:
        """What git said, or None."""
        if self._git is None:
            return None
        try:
            output, _ = self._git.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            return None
        lines = output.decode("utf-8", "replace").splitlines()
        oid = next((line.removeprefix("# branch.oid ") for line in lines if line.startswith("# branch.oid ")), "")
        if self._git.returncode or not oid or oid == "(initial)":
            return None
        return Commit(oid, any(not line.startswith("#") for line in lines))

    def close(self) -> None:
        """End it if it still runs."""
        if self._git is not None:
            if self._git.poll() is None:
                self._git.kill()
            with self._git:
                pass
