"""Processes below the agent: how they are tied to their parent, found, and ended.

Ranks live in sessions of their own and outlive their parents, so one process group never covers a worker. Two ways
of finding them do: the chain of parents (orphans come to the nearest subreaper) and a marker in the environment,
which survives the death of every parent.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

try:
    import ctypes

    _prctl: Callable[..., int] | None = ctypes.CDLL(None, use_errno=True).prctl
except (ImportError, OSError, AttributeError):  # a Python without libffi, or another system: sweeps still work
    _prctl = None

MARKER = "ORCHESTRA_RUN"
"""Environment variable that every process below one agent inherits."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLEANERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "busybox")
_PROC = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    state: str
    cpu_seconds: float
    started: int
    """Clock ticks since boot: with the pid, an identity that is never reused."""

    @property
    def alive(self) -> bool:
        """A zombie only waits for its parent to look."""
        return self.state not in ("Z", "X")


def die_with_parent(number: int) -> None:
    """Asks the kernel to signal this process when the thread that started it ends."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def process_table() -> dict[int, Process]:
    """Every process that this one may see."""
    table = {}
    for name in os.listdir(_PROC):  # noqa: PTH208 (a pathlib object for each of a thousand entries is dear)
        if name.isdigit():
            process = read_process(int(name))
            if process is not None:
                table[process.pid] = process
    return table


def read_process(pid: int) -> Process | None:
    """One process; None if it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name stands in brackets and may hold spaces and brackets itself.
    fields = text[text.rfind(b")") + 2 :].split()
    return Process(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_seconds=sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_SECOND,
        started=int(fields[19]),
    )


def descendants(root: int, table: dict[int, Process]) -> set[int]:
    """All living processes below `root`, by their chain of parents."""
    children: dict[int, set[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, set()).add(process.pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in found:
                found.add(pid)
                waiting.append(pid)
    return {pid for pid in found if table[pid].alive}


def behind_shells(root: int, table: dict[int, Process]) -> set[int]:
    """The program itself where `root` is a shell that waits for it: a signal would end the shell before it."""
    children = {pid for pid, process in table.items() if process.parent == root and process.alive}
    if not children or not _is_shell(root):
        return {root}
    return {pid for child in children for pid in behind_shells(child, table)}


def forbid_core_dump(pid: int) -> None:
    """Before an abort: the memory of a trainer would take minutes to write. 1, not 0: that stops core handlers, too."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        if hard != 0:
            resource.prlimit(pid, resource.RLIMIT_CORE, (1, hard))


def marked(value: str, table: Iterable[int]) -> set[int]:
    """All living processes whose environment carries the marker with this value."""
    wanted = f"{MARKER}={value}".encode()
    found = set()
    for pid in table:
        with contextlib.suppress(OSError):  # gone, or another user's: not ours either way
            if wanted in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def of_worker(marker: str) -> set[int]:
    """The living processes of one worker, wherever they hang, but for this one."""
    table = process_table()
    alive = [pid for pid, process in table.items() if process.alive and pid != os.getpid()]
    return marked(marker, alive)


def end_all(find: Callable[[], set[int]], seconds: float, reap: Callable[[], object] = lambda: None) -> set[int]:
    """Kills what `find` finds until it finds nothing. Returns those that would not go in time (stuck in the kernel).

    Helpers that clean shared memory up after a dead process get half a second to do so first.
    """
    begin = time.monotonic()
    while True:
        found = find()
        if not found or time.monotonic() - begin > seconds:
            return found
        spared = {pid for pid in found if _is_cleaner(pid)} if time.monotonic() - begin < 0.5 else set()
        for pid in found - spared:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        reap()


def reap_children() -> dict[int, int]:
    """The children that have ended, with their exit code (negative: the signal)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = exit_code(status)


def exit_code(status: int) -> int:
    """A wait status as subprocess shows it (os.waitstatus_to_exitcode is newer than Python 3.8)."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _is_shell(pid: int) -> bool:
    try:
        return os.readlink(_PROC / str(pid) / "exe").rpartition("/")[2] in _SHELLS  # noqa: PTH115
    except OSError:
        return False


def _is_cleaner(pid: int) -> bool:
    try:
        line = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return any(name in line for name in _CLEANERS)
