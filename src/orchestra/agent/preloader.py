"""The shim's side of a preloader: one process a rank slot that waits to become the next generation."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from typing import IO, Any

from .program import python_words

_MODULES = ["torch"]


class Preloader:
    """Starts at once. `ready` is None until it has answered, and False with a `reason` where only cold is safe."""

    def __init__(self, program: list[str], agent_file: str, env: Mapping[str, str], tie: Callable[[], None]) -> None:
        self.ready: bool | None = None
        self.reason = ""
        self.pid: int | None = None
        self._rest = b""
        self._answers = -1
        words = python_words(program)
        if words is None:
            self.ready, self.reason = False, f"{program[0]} is not Python with a script or a module"
            return
        interpreter, self._argv = words
        modules = env.get("ORCHESTRA_PRELOAD", " ".join(_MODULES)).split()
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*interpreter, agent_file, "preload", str(writing), *modules],
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=tie,
                pass_fds=(writing,),
            )
        except OSError as error:
            os.close(reading)
            self.ready, self.reason = False, f"cannot start {interpreter[0]}: {error.strerror}"
            return
        finally:
            os.close(writing)
        self._process.returncode = 0  # reaped by the shim, with all others
        self.pid = self._process.pid
        os.set_blocking(reading, False)
        self._answers = reading

    @property
    def answers(self) -> int:
        """Descriptor to select on; -1 when there is nothing more to hear."""
        return self._answers

    def hear(self) -> list[dict[str, Any]]:
        """What it has said. Sets `ready`; at the end of the stream closes it."""
        try:
            data = os.read(self._answers, 65536)
        except BlockingIOError:
            return []
        if not data:
            os.close(self._answers)
            self._answers = -1
            if self.ready is None:
                self.ready, self.reason = False, "it ended before it was ready"
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages = [json.loads(line.decode()) for line in lines]
        for message in messages:
            if "ready" in message:
                self.ready, self.reason = bool(message["ready"]), str(message["reason"])
        return messages

    def died(self) -> None:
        """The shim has reaped it."""
        if self.pid is not None:
            self.pid, self.ready, self.reason = None, False, "it died while it waited"

    def go(self, cwd: str, env: Mapping[str, str]) -> tuple[int, IO[bytes], IO[bytes]] | None:
        """Let it become the program. Returns its pid and output, or None where it cannot any more."""
        if not self.ready or self.pid is None or self._process.stdin is None:
            return None
        order = {"cwd": cwd, "env": dict(env), "argv": self._argv}
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.close()
        except OSError:
            return None
        assert self._process.stdout is not None  # noqa: S101
        assert self._process.stderr is not None  # noqa: S101
        return self.pid, self._process.stdout, self._process.stderr

    def dismiss(self) -> None:
        """Let it end."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr) if self.pid else ():
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
