"""A child of the agent: the set-up command, or the launcher. Its output becomes tagged lines."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable

from .lines import LineSplitter
from .processes import die_with_parent

_TAIL = 80


class Child:
    """Started in a session of its own, and killed by the kernel if the agent dies."""

    def __init__(self, argv: list[str], env: dict[str, str], folder: str | None) -> None:
        """Starts it. Raises OSError."""
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_tie_to_agent,
        )
        process.returncode = 0  # the agent reaps all its children itself: Popen must not look for this one
        self.pid = process.pid
        self.exit: int | None = None
        self.lines: deque[str] = deque(maxlen=_TAIL)
        self.errors: deque[str] = deque(maxlen=_TAIL)
        self._splitters: dict[int, LineSplitter] = {}
        self._error_stream = -1
        for stream in (process.stdout, process.stderr):
            assert stream is not None  # noqa: S101
            number = os.dup(stream.fileno())
            if stream is process.stderr:
                self._error_stream = number
            stream.close()
            os.set_blocking(number, False)
            self._splitters[number] = LineSplitter()

    @property
    def streams(self) -> list[int]:
        """File descriptors to select on, until `read` says that one has ended."""
        return list(self._splitters)

    def read(self, number: int, now: float, emit: Callable[[str], None]) -> bool:
        """Emits the lines that are there. False at the end of the stream."""
        try:
            data = os.read(number, 65536)
        except BlockingIOError:
            return True
        splitter = self._splitters[number]
        for line in splitter.feed(data, now) if data else splitter.flush():
            self.lines.append(line)
            if number == self._error_stream:
                self.errors.append(line)
            emit(line)
        if data:
            return True
        del self._splitters[number]
        os.close(number)
        return False


def _tie_to_agent() -> None:
    die_with_parent(signal.SIGKILL)
