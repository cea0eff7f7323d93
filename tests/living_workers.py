"""The processes of a job's workers on the testbed's nodes, which are this machine's own: to kill them, and to see that
never two of one attempt live at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_EVERY = 0.5


@dataclass(frozen=True)
class Worker:
    """One living agent."""

    pid: int
    uid: str
    """Of the job."""
    attempt: int
    node: int


def workers() -> list[Worker]:
    """All living agents in pods."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        spec = _spec_of(folder)
        if spec is not None:
            found.append(Worker(int(folder.name), str(spec["uid"]), int(spec["attempt"]), int(spec["node"])))
    return found


def _spec_of(folder: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        words = (folder / "cmdline").read_bytes().split(b"\0")
        if words[-3:-1] != [b"run", b"env:ORCHESTRA_SPEC"] or b"/agent.pyz" not in b"".join(words):
            return None
        status = (folder / "status").read_text()
        if "\nNSpid:" not in status or status.split("\nNSpid:")[1].splitlines()[0].split()[-1] != "1":
            return None  # the agent's own guard
        if "\nState:\tZ" in status:
            return None
        for variable in (folder / "environ").read_bytes().split(b"\0"):
            if variable.startswith(b"ORCHESTRA_SPEC="):
                spec: dict[str, Any] = json.loads(variable.partition(b"=")[2])
                return spec
    return None


def agent_of(pod: dict[str, Any]) -> int:
    """Pid of the agent in a pod."""
    return next(pid for pid in _pids_of(pod) if _spec_of(Path(f"/proc/{pid}")) is not None)


def ranks_of(pod: dict[str, Any], program: bytes) -> list[int]:
    """Pids of the ranks' main processes in a pod: those with these words, but for launcher and shims."""
    found = []
    for pid in _pids_of(pod):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if program in words and b"rank" not in words and b"--no-python" not in words:
                found.append(pid)
    return found


def _pids_of(pod: dict[str, Any]) -> list[int]:
    uid, found = pod["metadata"]["uid"], []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"pod{uid}" in (folder / "cgroup").read_text():
                found.append(int(folder.name))
    return found


def kill9(pid: int) -> None:
    """At once."""
    os.kill(pid, signal.SIGKILL)


class Watcher(threading.Thread):
    """Looks again and again, and remembers every moment at which a worker had a double within its attempt."""

    def __init__(self, uid: str) -> None:
        super().__init__(daemon=True)
        self._uid = uid
        self._over = threading.Event()
        self.doubles: list[list[Worker]] = []
        self.looks = 0

    def run(self) -> None:
        """Until `stop`."""
        while not self._over.wait(_EVERY):
            self.look()

    def look(self) -> None:
        """Once."""
        self.looks += 1
        mine = [worker for worker in workers() if worker.uid == self._uid]
        for one in mine:
            same = [other for other in mine if (other.attempt, other.node) == (one.attempt, one.node)]
            if len(same) > 1:
                self.doubles.append(same)

    def stop(self) -> None:
        """And say what was seen."""
        self._over.set()
        self.join()

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
