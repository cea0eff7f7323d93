"""The attempt's log file, and the same lines on the agent's standard output."""

from __future__ import annotations

import collections
import os
import threading
import time
from pathlib import Path
from typing import BinaryIO

KEPT = 5
_ECHO_BYTES = 4 * 1024 * 1024


class Logbook:
    """Only the agent writes here, so lines never interleave and rotation needs nobody's consent.

    A full disk costs lines, never the job: `lost` counts them.
    """

    def __init__(self, path: Path, rotate_bytes: int, echo: Echo) -> None:
        """Appends to what is there."""
        self._path = path
        self._rotate_bytes = rotate_bytes
        self._echo = echo
        self._file: BinaryIO | None = None
        self._size = 0
        self.lines = 0
        self.lost = 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, now: float, tag: str, text: str) -> None:
        """One line; on disk after `flush`."""
        self.lines += 1
        self._echo.write(f"[{tag}] {text}\n".encode("utf-8", "replace"))
        data = f"{now:.3f} {tag} {text}\n".encode("utf-8", "replace")
        try:
            if self._file is None or self._size + len(data) > self._rotate_bytes:
                self._open(len(data))
            assert self._file is not None  # noqa: S101
            self._file.write(data)
            self._size += len(data)
        except OSError:
            self.lost += 1

    def flush(self) -> None:
        """Hands what was written to the kernel."""
        try:
            if self._file is not None:
                self._file.flush()
        except OSError:
            self.lost += 1

    def close(self) -> None:
        """Ends the file, and gives a slow reader of standard output a moment for the rest."""
        self.flush()
        self._echo.close()

    def _open(self, more: int) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._path.exists() and self._path.stat().st_size + more > self._rotate_bytes:
            self._rotate()
        self._file = self._path.open("ab", buffering=256 * 1024)
        self._size = self._file.tell()

    def _rotate(self) -> None:
        for number in range(KEPT - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class Echo:
    """Writes to a stream that may be slow, stuck or closed, without ever making the caller wait."""

    def __init__(self, number: int, room: int = _ECHO_BYTES) -> None:
        """`number` is the file descriptor, `room` how many bytes may wait for it."""
        self._number = number
        self._room = room
        self._waiting: collections.deque[bytes] = collections.deque()
        self._bytes = 0
        self._dropped = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, daemon=True, name="echo")
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Takes the line, or drops the oldest waiting ones for it and says so in their place."""
        with self._changed:
            self._waiting.append(line)
            self._bytes += len(line)
            while self._bytes > self._room and len(self._waiting) > 1:
                self._bytes -= len(self._waiting.popleft())
                self._dropped += 1
            self._changed.notify()

    def close(self, seconds: float = 2.0) -> None:
        """Waits a little for the reader."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                data = b"".join(self._waiting)
                if self._dropped:
                    note = f"[agent] {self._dropped} lines were not read in time; they are in the log file\n"
                    data = note.encode() + data
                self._waiting.clear()
                self._bytes = self._dropped = 0
            if not self._write(data):
                return

    def _write(self, data: bytes) -> bool:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._number, rest[:65536]) :]
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:  # nobody reads any more; the file has it all
                return False
        return True
