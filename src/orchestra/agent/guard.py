"""The guard: a small process beside the agent that ends the worker if the agent is killed."""

from __future__ import annotations

import contextlib
import os
import signal

from .processes import end_all, of_worker

_SWEEP_SECONDS = 30.0
_DISMISSED = b"q"


class Guard:
    """Watches a pipe that only the agent holds. When it closes without a word, everything with the marker is killed.

    Must be started before the agent has threads: it is a fork without exec, and shares the agent's memory.
    """

    def __init__(self, marker: str) -> None:
        """Starts it."""
        watched, self._lifeline = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._lifeline)
            _watch(watched, marker)
        os.close(watched)

    def dismiss(self) -> None:
        """The agent ends in order: the guard has nothing to do."""
        with contextlib.suppress(OSError):
            os.write(self._lifeline, _DISMISSED)
            os.close(self._lifeline)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _watch(watched: int, marker: str) -> None:
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        # An open copy of the agent's streams would keep its reader waiting for the end of a dead agent's output.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        if os.read(watched, 1) != _DISMISSED:
            end_all(lambda: of_worker(marker), _SWEEP_SECONDS)
        code = 0
    finally:
        os._exit(code)
