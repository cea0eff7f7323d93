"""The writer process, as the training sees it (writer.py is the process itself)."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra.train.publishing import Task
from orchestra.train.staging import Arena

HEADER = struct.Struct("<Q")
"""Each message is its length and a pickle; the training's may bring the descriptor of a new arena."""
_PATIENCE = 5.0


@dataclass(frozen=True)
class Outcome:
    """How a save went."""

    step: int
    name: str = ""
    """The published folder; empty on ranks that only wrote a part."""
    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Order:
    """One save, as the training asks for it."""

    task: Task
    skeleton: Any
    sharded: bool


class Writer:
    """The writer process, as the training sees it: one save at a time."""

    def __init__(self, on_outcome: Callable[[Outcome], None] = lambda _: None) -> None:
        self._ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *(str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(":") if path)]
        variables = {**os.environ, "PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "orchestra.train.writer", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=variables,
                cwd="/",  # nothing in the training's folder shadows a module
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._on_outcome = on_outcome
        self._known_arena: Arena | None = None
        self._outcome: Outcome | None = None
        self._done = threading.Event()
        self._step = 0

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def submit(self, order: Order, arena: Arena) -> None:
        """Hand over a save; its tensors lie in the arena and stay as they are until `outcome`."""
        self._done.clear()
        self._step = order.task.step
        message = pickle.dumps(order)
        descriptors = [] if arena is self._known_arena else [arena.descriptor]
        try:
            socket.send_fds(self._ours, [HEADER.pack(len(message))], descriptors)
            self._ours.sendall(message)
        except OSError:
            self._finish(self._ended())
            return
        self._known_arena = arena
        threading.Thread(target=self._listen, name="orchestra-writer", daemon=True).start()

    def outcome(self) -> Outcome:
        """Wait for the end of the save that was handed over last."""
        self._done.wait()
        assert self._outcome is not None  # noqa: S101 - set before the event
        return self._outcome

    def close(self) -> None:
        """Let it go: it finishes what it has, and ends."""
        self._ours.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:  # still writing: someone must collect it when it ends
            threading.Thread(target=self._process.wait, name="orchestra-writer-end", daemon=True).start()

    def _listen(self) -> None:
        message = _receive(self._ours)
        self._finish(pickle.loads(message) if message is not None else self._ended())  # noqa: S301 - our own child

    def _ended(self) -> Outcome:
        try:
            code: int | str = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            code = "not known"
        return Outcome(self._step, error=f"the writer process {self.pid} has ended (exit code {code})")

    def _finish(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._on_outcome(outcome)
        self._done.set()


def _receive(connection: socket.socket) -> bytes | None:
    try:
        header = exactly(connection, HEADER.size)
        return None if header is None else exactly(connection, HEADER.unpack(header)[0])
    except OSError:
        return None


def exactly(connection: socket.socket, size: int) -> bytes | None:
    """So many bytes, or None if the other side hung up before."""
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
