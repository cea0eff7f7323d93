"""The shim: one small process between the launcher and each rank.

It owns the rank's output, ties the rank to itself (nothing of a rank outlives its shim, nothing of a worker its
agent), hands a stop to the rank's main process only, and tells the agent how the rank ended. The rank runs in a
session of its own, so that what a launcher sends to the shim's process group never reaches it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .channel import HIGH_WATER, connect
from .environment import FOLDER, LOCAL_RANK_WORD, SOCKET
from .files import remove, write_json
from .lines import LineSplitter
from .processes import (
    become_subreaper,
    behind_shells,
    descendants,
    die_with_parent,
    end_all,
    forbid_core_dump,
    process_table,
    reap_children,
)
from .program import with_local_rank

RANK_FILES = ("progress.json", "result.json", "exit.json")
_LAUNCHER_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_CLEARED_EXIT = 143
_CHUNK = 64 * 1024


class Shim:
    """Runs one rank. One instance a process."""

    def __init__(self, program: list[str], env: Mapping[str, str]) -> None:
        """Reads identity from the launcher's environment."""
        self._local_rank = int(env.get("LOCAL_RANK", "0"))
        self._rank = int(env.get("RANK") or env.get("ORCHESTRA_NODE") or "0")
        self._program = with_local_rank(program, self._local_rank) if env.get(LOCAL_RANK_WORD) else program
        self._folder = Path(env[FOLDER]) / "ranks" / str(self._rank)
        self._stop_file = Path(env["ORCHESTRA_STOP_FILE"])
        self._env = env
        self._identity: dict[str, Any] = {
            "id": os.urandom(16).hex(),
            "rank": self._rank,
            "localRank": self._local_rank,
            "localWorldSize": int(env.get("LOCAL_WORLD_SIZE", "0")) or None,
            "round": int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
            "attempt": int(env.get("ORCHESTRA_ATTEMPT", "1")),
            "pid": os.getpid(),
            "launcherPid": os.getppid(),
        }
        self._splitters: dict[int, LineSplitter] = {}
        self._streams: dict[int, str] = {}
        self._main: int | None = None
        self._exit: int | None = None
        self._cleared = False
        self._started = time.time()
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Runs the rank to its end. Returns the shim's own exit code, which only the launcher reads."""
        become_subreaper()
        self._watch_signals()
        # Not SIGKILL: the shim of a dead launcher still has the rank's children to end.
        die_with_parent(signal.SIGTERM)
        try:
            self._channel = connect(self._env[SOCKET])
        except OSError:
            return 1  # the agent is gone, and with it the worker
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in RANK_FILES:  # of an earlier round or attempt
            remove(self._folder / name)
        self._channel.send({"kind": "hello", **self._identity, "time": self._started})
        self._channel.flush()
        if self._stop_requested():
            return self._finish("notStarted")
        error = self._start()
        if error:
            self._channel.send_line("e", time.time(), error)
            return self._finish("notFound")
        self._live()
        return self._finish("ended")

    def _start(self) -> str:
        """Starts the rank's main process. Returns why it could not be started, else nothing."""
        env = dict(self._env)
        env.pop(SOCKET)
        env["ORCHESTRA_RANK_DIR"] = str(self._folder)
        env["ORCHESTRA_PROGRESS_FILE"] = str(self._folder / "progress.json")
        env["ORCHESTRA_RESULT_FILE"] = str(self._folder / "result.json")
        if env.get("TORCHELASTIC_ERROR_FILE"):
            remove(Path(env["TORCHELASTIC_ERROR_FILE"]))
        try:
            process = subprocess.Popen(
                self._program,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=_tie_to_shim,
            )
        except OSError as error:
            self._exit = 127 if isinstance(error, FileNotFoundError) else 126
            return f"cannot start {self._program[0]}: {error.strerror}"
        process.returncode = 0  # reaped here, with all others: Popen must not look for it
        self._main = process.pid
        for stream, name in ((process.stdout, "o"), (process.stderr, "e")):
            assert stream is not None  # noqa: S101
            number = os.dup(stream.fileno())
            stream.close()
            os.set_blocking(number, False)
            self._streams[number] = name
            self._splitters[number] = LineSplitter()
            self._selector.register(number, selectors.EVENT_READ, self._read)
        self._channel.send({"kind": "started", "main": self._main})
        return ""

    def _live(self) -> None:
        reading = selectors.EVENT_READ
        self._selector.register(self._channel, reading, self._hear_agent)
        while self._exit is None:
            self._channel.flush()
            wanted = reading | (selectors.EVENT_WRITE if self._channel.unsent else 0)
            self._selector.modify(self._channel, wanted, self._hear_agent)
            for key, _ in self._selector.select(timeout=1.0):
                if key.fd in self._streams and self._channel.unsent > HIGH_WATER:
                    time.sleep(0.01)  # the agent is behind: the rank's pipe fills, and the rank waits
                    continue
                key.data(key.fd)
            self._reap()

    def _read(self, number: int) -> bool:
        """Passes on what the rank wrote. False at the end of the stream, or when there is nothing yet."""
        try:
            data = os.read(number, _CHUNK)
        except BlockingIOError:
            return False
        now = time.time()
        if not data:
            self._selector.unregister(number)
        for line in self._splitters[number].feed(data, now):
            self._channel.send_line(self._streams[number], now, line)
        return bool(data)

    def _hear_agent(self, _: int) -> None:
        for message in self._channel.receive():
            if message == b'J{"do": "stop"}':
                self._signal(signal.SIGTERM)
            elif message == b'J{"do": "stacks"}':
                self._signal(signal.SIGABRT)
            elif message == b'J{"do": "end"}':
                self._end_rank()
        if self._channel.closed:
            self._end_rank()

    def _hear_signal(self, number: int) -> None:
        with contextlib.suppress(BlockingIOError):
            received = os.read(number, 256)
            self._reap()  # a rank that fell by itself was not cleared
            # Without a stop request this is the launcher clearing the survivors of a crash, or the launcher's death:
            # nothing to wait for. With one, the rank already knows and is saving.
            if any(signal_number in received for signal_number in _LAUNCHER_SIGNALS) and not self._stop_requested():
                self._cleared = self._exit is None
                self._end_rank()

    def _watch_signals(self) -> None:
        read_end, write_end = os.pipe()
        for end in (read_end, write_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (*_LAUNCHER_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._selector.register(read_end, selectors.EVENT_READ, self._hear_signal)

    def _signal(self, number: int) -> None:
        """Signals the rank's main process; behind a shell, what the shell has started."""
        if self._main is not None and self._exit is None:
            for pid in behind_shells(self._main, process_table()):
                if number == signal.SIGABRT:
                    forbid_core_dump(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _stop_requested(self) -> bool:
        return self._stop_file.exists()

    def _reap(self) -> None:
        for pid, code in reap_children().items():
            if pid == self._main:
                self._exit = code

    def _end_rank(self) -> None:
        end_all(_below, 5.0, self._reap)

    def _finish(self, how: str) -> int:
        ended = time.time()
        self._end_rank()
        deadline = time.monotonic() + 1.0
        while set(self._streams) & set(self._selector.get_map()) and time.monotonic() < deadline:
            open_streams = [number for number in self._streams if number in self._selector.get_map()]
            if sum(self._read(number) for number in open_streams) == 0:
                time.sleep(0.005)
            self._channel.flush()
        for number, splitter in self._splitters.items():
            for line in splitter.flush():
                self._channel.send_line(self._streams[number], time.time(), line)
        stopping = self._stop_requested()
        record = {
            **self._identity,
            "how": how,
            "exit": self._exit,
            "started": self._started,
            "ended": ended,
            "cleared": self._cleared,
            "stopRequested": stopping,
            "error": self._error_file(),
        }
        with contextlib.suppress(OSError):  # a full disk must not hide the exit
            write_json(self._folder / "exit.json", record)
        self._channel.send({"kind": "exit", **record})
        self._channel.flush(seconds=5.0)
        if stopping:
            return 0  # keeps the launcher from clearing the others while they save
        if self._cleared:
            return _CLEARED_EXIT
        code = 1 if self._exit is None else self._exit
        return code if code >= 0 else 128 - code

    def _error_file(self) -> str | None:
        """What torch's `@record` wrote about an exception."""
        name = self._env.get("TORCHELASTIC_ERROR_FILE")
        if not name:
            return None
        try:
            return Path(name).read_text("utf-8", "replace")[: 32 * 1024]
        except OSError:
            return None


def _below() -> set[int]:
    return descendants(os.getpid(), process_table())


def _tie_to_shim() -> None:
    die_with_parent(signal.SIGKILL)


def run_rank(program: list[str]) -> int:
    """`agent.pyz rank -- PROGRAM...`."""
    return Shim(program, os.environ).run()
