"""The shim: one small process between the launcher and each rank.

It owns the rank's output, ties the rank to itself (nothing of a rank outlives its shim, nothing of a worker its
agent), hands a stop to the rank's main process only, and tells the agent how the rank ended. The rank runs in a
session of its own, so that what a launcher sends to the shim's process group never reaches it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .channel import HIGH_WATER, connect
from .environment import FOLDER, GENERATION, LOCAL_RANK_WORD, SOCKET, without_brought
from .files import read_json, remove, write_json
from .lines import LineSplitter
from .preloader import Preloader
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
_GENERATION_STEP = 1000
"""Added to torchrun's restart count for each generation: what ranks keep in a shared store is named by that count."""


class Shim:
    """Runs one rank. One instance a process."""

    def __init__(self, program: list[str], env: Mapping[str, str], agent_file: str = "") -> None:
        """Reads identity from the launcher's environment."""
        self._agent_file = agent_file
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
        self._holding = False
        self._next: dict[str, Any] | None = None
        self._preloader: Preloader | None = None
        self._generation: dict[str, Any] = read_json(Path(env[FOLDER]) / GENERATION) or {}
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
        while True:
            how = self._generation_to_its_end()
            if how != "ended" or not self._holds():
                return self._finish(how)
            self._finish(how, held=True)
            if not self._wait_for_orders():
                return 0

    def _generation_to_its_end(self) -> str:
        """One run of the program, from hello to its exit."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in RANK_FILES:  # of an earlier round or attempt
            remove(self._folder / name)
        hello = {**self._identity, "time": self._started, "generation": self._generation.get("generation", 0)}
        self._channel.send({"kind": "hello", **hello})
        self._channel.flush()
        if self._stop_requested():
            return "notStarted"
        error = self._start()
        if error:
            self._channel.send_line("e", time.time(), error)
            return "notFound"
        self._live()
        return "ended"

    # --- hot reload: the shim stays, and its rank is started anew ------------------------------------------------

    def _holds(self) -> bool:
        """Whether the rank stopped for new code, which comes next."""
        result = read_json(self._folder / "result.json") or {}
        return self._holding and not self._cleared and (self._stop_requested() or result.get("state") == "stopped")

    def _wait_for_orders(self) -> bool:
        """After the stop: True with new code, False when the worker ends instead."""
        reading = selectors.EVENT_READ
        while self._holding and not self._cleared and not self._channel.closed and self._next is None:
            self._channel.flush()
            wanted = reading | (selectors.EVENT_WRITE if self._channel.unsent else 0)
            self._selector.modify(self._channel, wanted, self._hear_agent)
            for key, _ in self._selector.select(timeout=1.0):
                key.data(key.fd)
            self._reap()
        if self._next is None or self._cleared or self._channel.closed:
            return False
        self._generation, self._next, self._holding = self._next, None, False
        self._identity["id"], self._started, self._exit = os.urandom(16).hex(), time.time(), None
        self._selector.unregister(self._channel)
        return True

    def _preload(self) -> None:
        """Has a process ready that becomes the next generation's rank."""
        if self._preloader is None:
            made = Preloader(self._program, self._agent_file, self._rank_env(), _tie_to_shim)
            if made.answers >= 0:
                self._selector.register(made.answers, selectors.EVENT_READ, lambda fd: self._hear_preloader(made, fd))
            self._preloader = made
        if self._preloader.ready is not None:
            self._tell_preloaded(self._preloader)

    def _tell_preloaded(self, preloader: Preloader) -> None:
        self._channel.send({"kind": "preloaded", "ready": preloader.ready, "reason": preloader.reason})

    def _hear_preloader(self, preloader: Preloader, number: int) -> None:
        waiting = preloader.ready is None
        for message in preloader.hear():
            if "running" in message:
                self._channel.send({"kind": "running", "time": message["running"]})
        if preloader.answers < 0:
            self._selector.unregister(number)
        if waiting and preloader.ready is not None and preloader is self._preloader:
            self._tell_preloaded(preloader)

    def _waiting_pid(self) -> int | None:
        return self._preloader.pid if self._preloader is not None else None

    def _start_preloaded(self, env: dict[str, str]) -> tuple[int, Any, Any] | None:
        preloader = self._preloader
        if preloader is None:
            return None
        became = preloader.go(self._generation.get("workingDir") or ".", env)
        if became is None:
            preloader.dismiss()
        self._preloader = None  # the next one is started when somebody asks for it
        return became

    # --- the rank ------------------------------------------------------------------------------------------------

    def _rank_env(self) -> dict[str, str]:
        env = without_brought(self._env)
        env.pop(SOCKET)
        generation = int(self._generation.get("generation", 0))
        if generation and env.get("TORCHELASTIC_RESTART_COUNT"):
            count = int(env["TORCHELASTIC_RESTART_COUNT"]) + generation * _GENERATION_STEP
            env["TORCHELASTIC_RESTART_COUNT"] = str(count)
        env["ORCHESTRA_RANK_DIR"] = str(self._folder)
        env["ORCHESTRA_PROGRESS_FILE"] = str(self._folder / "progress.json")
        env["ORCHESTRA_RESULT_FILE"] = str(self._folder / "result.json")
        return env

    def _start(self) -> str:
        """Starts the rank's main process. Returns why it could not be started, else nothing."""
        env = self._rank_env()
        if env.get("TORCHELASTIC_ERROR_FILE"):
            remove(Path(env["TORCHELASTIC_ERROR_FILE"]))
        preloaded = self._start_preloaded(env)
        if preloaded is not None:
            self._adopt(*preloaded)
            return ""
        try:
            process = subprocess.Popen(
                self._program,
                env=env,
                cwd=self._generation.get("workingDir"),
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
        self._adopt(process.pid, process.stdout, process.stderr)
        return ""

    def _adopt(self, pid: int, out: Any, err: Any) -> None:
        """The process is the rank from now on."""
        self._main = pid
        for stream, name in ((out, "o"), (err, "e")):
            number = os.dup(stream.fileno())
            stream.close()
            os.set_blocking(number, False)
            self._streams[number] = name
            self._splitters[number] = LineSplitter()
            self._selector.register(number, selectors.EVENT_READ, self._read)
        self._channel.send({"kind": "started", "main": self._main})

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
                self._end_rank(self._waiting_pid() if self._holding else None)
            elif message == b'J{"do": "hold"}':
                self._holding = True
            elif message == b'J{"do": "release"}':
                self._holding = False
            elif message == b'J{"do": "preload"}':
                self._preload()
            elif message.startswith(b'J{"do": "start"'):
                self._next = json.loads(message[1:].decode())
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
                self._holding = False
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
            elif self._preloader is not None and pid == self._preloader.pid:
                self._preloader.died()

    def _end_rank(self, but: int | None = None) -> None:
        end_all(lambda: _below() - {but}, 5.0, self._reap)

    def _finish(self, how: str, held: bool = False) -> int:
        """Ends what is left of the rank and tells the agent. `held`: the shim and its preloader stay."""
        ended = time.time()
        self._end_rank(self._waiting_pid() if held else None)
        deadline = time.monotonic() + 1.0
        while set(self._streams) & set(self._selector.get_map()) and time.monotonic() < deadline:
            open_streams = [number for number in self._streams if number in self._selector.get_map()]
            if sum(self._read(number) for number in open_streams) == 0:
                time.sleep(0.005)
            self._channel.flush()
        for number, splitter in self._splitters.items():
            for line in splitter.flush():
                self._channel.send_line(self._streams[number], time.time(), line)
        for number in self._streams:
            if number in self._selector.get_map():
                self._selector.unregister(number)
            os.close(number)
        self._streams, self._splitters = {}, {}
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
            "held": held,
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


def run_rank(program: list[str], agent_file: str) -> int:
    """`agent.pyz rank -- PROGRAM...`."""
    return Shim(program, os.environ, agent_file).run()
