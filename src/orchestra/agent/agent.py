"""The agent: runs one worker of one attempt from its launch spec to its result."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from typing import Any

from . import channel as channels
from .before import Before
from .child import Child
from .crew import Crew
from .environment import STOP_FILE, usable_cores, with_brought, worker_environment
from .failure import LINES_KEPT, Evidence, Failure, explain_launcher
from .files import read_json, remove, show_file, write_json
from .guard import Guard
from .hang import silence
from .logbook import Echo, Logbook
from .pages import Pages
from .post_mortem import examine
from .processes import become_subreaper, descendants, end_all, marked, process_table, reap_children
from .program import launch_argv
from .reload import REASON, Reload
from .result import build_result, write_termination_log
from .spec import BadSpec, LaunchSpec, read_spec
from .store import guests, store_port
from .unpack import compile_shim, unpack
from .verdict import EXIT_CODES, Stop, Verdict, judge

_TICK_SECONDS = 0.1
_LOOK_SECONDS = 1.0
_GUEST_SECONDS = 10.0
"""How long a finished node waits for the others to leave its store."""


class Agent(Before):
    """One instance a process. `run` returns the exit code of the contract."""

    def __init__(self, spec: LaunchSpec, agent_file: str, early: list[int]) -> None:
        """Prepares the folder; nothing of an earlier attempt is left to be mistaken for this one's."""
        self._spec, self._agent_file, self._early = spec, agent_file, early
        self._marker = os.urandom(16).hex()
        spec.folder.mkdir(parents=True, exist_ok=True)
        remove(spec.folder / "result.json")
        if (read_json(spec.folder / STOP_FILE) or {}).get("attempt") != spec.attempt:
            remove(spec.folder / STOP_FILE)
        self._state = "setup"
        self._child: Child | None = None
        self._tag = "setup"
        self._stop: Stop | None = None
        self._hang: dict[str, Any] | None = None
        self._kept: set[int] = set()
        self._orphans_until = self._finished = 0.0
        self._looked = self._hang_checked = time.monotonic()
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """From the spec to the result."""
        become_subreaper()
        self._watch_signals()
        self._guard = Guard(self._marker)  # before any thread
        echo = Echo(1)
        self._log = Logbook(
            self._spec.folder / "logs" / f"attempt-{self._spec.attempt}.log", self._spec.log_bytes, echo
        )
        self._crew = Crew(self._spec.folder, self._procs(), self._log, self.say)
        name = f"orchestra-{self._marker}"
        self._listener: socket.socket = channels.listen(name)
        self._selector.register(self._listener, selectors.EVENT_READ, lambda _: self._accept())
        self._env = worker_environment(self._spec, os.environ, self._marker, name, usable_cores())
        self._pages = Pages(self._spec, self._log, self._marker)
        self._reload = Reload(self._spec, self._crew, self.say)
        if self._spec.orders_socket is not None:
            self._reload.listen(self._spec.orders_socket, self._selector)
        self._set_state("setup")
        try:
            verdict = self._prepare() or self._launch() or self._supervise()
        except Exception as error:  # noqa: BLE001 (whatever it is, the ranks must go and the engine must know)
            lines = traceback.format_exc().splitlines()
            failure = Failure("Agent", f"the agent itself failed: {error!r}", lines[-LINES_KEPT:], time=time.time())
            verdict = Verdict("failed", failure)
        self._finish(verdict)
        return EXIT_CODES[verdict.state]

    def _set_state(self, state: str, failure: dict[str, Any] | None = None) -> None:
        self._state = state
        for file, there in ((self._spec.ready_file, state == "running"), (self._spec.healthy_file, not failure)):
            show_file(file, there and state not in EXIT_CODES)
        self._pages.show(state, self._crew.round, failure)

    def say(self, text: str) -> None:
        """A line of the agent's own in the log."""
        self._log.write(time.time(), "agent", text)

    def _procs(self) -> int:
        return 1 if self._spec.launcher == "none" else self._spec.procs_per_node

    # --- before the launch (before.py) --------------------------------------------------------------------------

    def _turn_once(self) -> Verdict | None:
        if self._early and self._stop is None:
            self._begin_stop(signal.Signals(self._early[0]).name)
        self._turn()
        lost = self._parent_lost()
        if lost is not None:
            return lost
        return Verdict("stopped", None, "stopped before any rank had started") if self._stop else None

    def _launch(self) -> Verdict | None:
        copy = self._spec.folder / "agent"
        unpacked = unpack(self._agent_file, copy)
        argv = launch_argv(self._spec, unpacked)
        self._env = with_brought(self._env, unpacked)
        name = argv[0]
        if shutil.which(name, path=self._env.get("PATH", os.defpath)) is None:
            failure = Failure("LauncherMissing", f"there is no program {name} here", time=time.time())
            return Verdict("failed", failure)
        spec = self._spec
        self.say(f"attempt {spec.attempt} of {spec.job}, node {spec.node} of {spec.nodes}: {' '.join(spec.program)}")
        self._set_state("starting")
        try:
            self._start(argv, "launcher")
        except OSError as error:
            return Verdict("failed", Failure("LauncherMissing", f"{name}: {error.strerror}", time=time.time()))
        if spec.launcher != "none":  # without one the shim is already there
            compile_shim(copy)
        return None

    def _start(self, argv: list[str], tag: str) -> None:
        self._child = Child(argv, self._env, self._spec.working_dir)
        self._tag = tag
        for number in self._child.streams:
            self._selector.register(number, selectors.EVENT_READ, self._read_child)
        problem = self._pages.serve()  # only now: the child has its own imports to do meanwhile
        if problem:
            self.say(problem)

    # --- while it runs -----------------------------------------------------------------------------------------

    def _supervise(self) -> Verdict:
        while True:
            self._turn(_TICK_SECONDS / 5 if self._reload.holding else _TICK_SECONDS)
            now = time.monotonic()
            lost = self._parent_lost()
            if lost is not None:
                return lost
            if self._changes_code(now):
                continue
            if self._crew.look_for_results(now) and self._stop is None:
                # Another node was asked to stop, and the ranks agreed among themselves.
                self._begin_stop("PeerStopped", tell=False)
            assert self._child is not None  # noqa: S101
            if self._child.exit is not None:
                self._drain_all()
            verdict = judge(
                self._crew.round,
                self._child.exit,
                self._stop,
                now,
                self._launcher_needed,
                self._launcher_failure,
                self._spec.failures_left,
            )
            verdict = verdict or self._check_hang(now)
            if verdict is not None:
                return verdict

    def _changes_code(self, now: float) -> bool:
        """Whether new code is on its way, so that ranks that stop mean no end."""
        assert self._child is not None  # noqa: S101
        if self._stop is None:
            self._reload.turn(now)
        if not self._reload.holding:
            return False
        if self._stop is not None or self._child.exit is not None or self._reload.broken():
            self._reload.give_up("the worker ends", self._stop is not None)
            return False
        self._crew.look_for_results(now)
        return True

    def _turn(self, seconds: float = _TICK_SECONDS) -> None:
        """Waits for something to happen, and takes it in."""
        for key, _ in self._selector.select(timeout=seconds):
            key.data(key.fileobj)
        for pid, code in reap_children().items():
            if self._child is not None and pid == self._child.pid:
                self._child.exit = code
        now = time.monotonic()
        self._pages.turned(now)
        if now < self._orphans_until:
            self._end_orphans()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._crew.look(now)
            show_file(self._spec.healthy_file, True)
            self._crew.watch_memory()
            self._pages.show(self._state, self._crew.round)
        self._log.flush()

    def _accept(self) -> None:
        connection = channels.accept(self._listener)
        if connection is not None:
            self._crew.add(connection)
            self._selector.register(connection, selectors.EVENT_READ, self._hear)

    def _hear(self, connection: channels.Channel) -> None:
        number, lost = connection.fileno(), self._crew.lost_shims
        news = self._crew.hear(connection)
        if news == "hello":
            if self._stop is not None:
                self._crew.tell_one(connection, "stop")
            elif self._state == "starting":
                self._set_state("running")
        if news == "gone":
            self._selector.unregister(number)
            if self._crew.lost_shims > lost:
                self._orphans_until = time.monotonic() + 2.0

    def _read_child(self, number: int) -> None:
        assert self._child is not None  # noqa: S101
        now, tag = time.time(), self._tag
        if not self._child.read(number, now, lambda line: self._log.write(now, tag, line)):
            self._selector.unregister(number)

    def _drain_child(self) -> None:
        """Reads what the child left in its pipes. Somebody else may hold them open, so only what is there."""
        assert self._child is not None  # noqa: S101
        for number in self._child.streams:
            for _ in range(64):
                before = len(self._child.streams)
                self._read_child(number)
                if len(self._child.streams) < before:
                    break

    def _drain_all(self) -> None:
        for connection in self._crew.channels():
            self._hear(connection)
        self._drain_child()

    def _launcher_needed(self, said_so: bool) -> bool:
        """Whether other nodes need this node's launcher although its ranks have finished."""
        spec, now = self._spec, time.monotonic()
        if not spec.launchers_meet:
            return False
        if not said_so:
            return True  # ranks that say nothing finish when they like: torchrun waits for those of other nodes
        self._finished = self._finished or now
        port = store_port(spec.launcher_argv)
        if not spec.hosts_store or port is None or self._child is None:
            return False
        return now - self._finished < _GUEST_SECONDS and guests(port, self._child.pid) > 0

    def _launcher_failure(self) -> Failure:
        child = self._child
        assert child is not None  # noqa: S101
        name = "the program" if self._spec.launcher == "none" else self._spec.launcher
        evidence = Evidence(child.exit, list(child.errors), list(child.lines))
        failure = explain_launcher(name, evidence, bool(self._crew.round.ranks))
        return Failure(failure.reason, failure.message, failure.lines, exit=child.exit, time=time.time())

    def _check_hang(self, now: float) -> Verdict | None:
        if self._stop is not None or now - self._hang_checked < _LOOK_SECONDS:
            return None
        self._hang_checked = now
        timeout = self._spec.hang_timeout_seconds
        watches = self._crew.watches()
        if timeout is not None and any(not watch.steps for watch in watches.values()):
            self._crew.measure_cpu(now)
        seconds = silence(watches, timeout, now)
        if seconds is None:
            return None
        self.say(f"no sign of life for {seconds:.0f} s: collecting stacks")
        hang, failure = examine(self._crew, self._spec.folder, self._turn, seconds)
        self._hang = {"missing": hang.missing, "waiting": hang.waiting, "message": hang.message}
        return Verdict("hang", failure)

    # --- stopping ----------------------------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        read_end, write_end = os.pipe()
        for end in (read_end, write_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._selector.register(read_end, selectors.EVENT_READ, self._hear_signal)

    def _hear_signal(self, number: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for received in os.read(number, 256):
                if received in (signal.SIGTERM, signal.SIGINT) and self._stop is None:
                    self._begin_stop(signal.Signals(received).name)

    def _begin_stop(self, reason: str, tell: bool = True) -> None:
        """Asks the ranks to save and go. The engine may have written its own reason beforehand."""
        grace = self._spec.grace_period_seconds
        left = max(0.0, grace - min(1.0, grace / 10))  # the rest is for ending what does not go
        path = self._spec.folder / STOP_FILE
        written = (read_json(path) or {}).get("reason")
        reason = str(written) if written and written != REASON else reason
        self._stop = Stop(reason, time.monotonic() + left)
        request = {"reason": reason, "deadline": time.time() + left, "attempt": self._spec.attempt}
        with contextlib.suppress(OSError):
            write_json(path, request)
        self.say(f"stop requested ({reason}), {grace:g} s to save")
        self._set_state("stopping")
        if tell:
            self._crew.tell("stop")

    def _parent_lost(self) -> Verdict | None:
        parent = self._spec.parent_pid
        if parent is None or os.getppid() == parent:
            return None
        self._stop = self._stop or Stop("ParentLost", 0.0)
        return Verdict("stopped", None, f"process {parent}, which watched over this worker, is gone")

    # --- the end -----------------------------------------------------------------------------------------------

    def _finish(self, verdict: Verdict) -> None:
        self._crew.tell("end")
        deadline = time.monotonic() + 1.0
        while self._crew.round.running() and time.monotonic() < deadline:
            self._turn(0.02)
        self._crew.look(time.monotonic())
        reason = self._stop.reason if self._stop else None
        spec, elastic = self._spec, self._spec.failures_left is not None
        result = build_result(verdict, self._crew.round, spec.attempt, spec.node, reason, self._hang, elastic)
        left = end_all(self._below, 10.0, reap_children)
        if left:
            self.say(f"processes {sorted(left)} do not die: stuck in the kernel")
        if self._child is not None:
            self._drain_child()
        self._set_state(verdict.state, result["failure"])
        self.say(_last_words(result))
        with contextlib.suppress(OSError):
            write_json(self._spec.folder / "result.json", result)
        if self._spec.result_file is not None:
            write_termination_log(self._spec.result_file, result)
        remove(self._spec.folder / STOP_FILE)
        self._log.close()
        self._guard.dismiss()

    def _below(self) -> set[int]:
        table = process_table()
        alive = {pid for pid, process in table.items() if process.alive}
        ours = descendants(os.getpid(), table) | marked(self._marker, alive)
        return ours - {self._guard.pid, os.getpid()}

    def _adopted(self) -> set[int]:
        known = {self._guard.pid, self._child.pid if self._child else 0}
        return {pid for pid, process in process_table().items() if process.parent == os.getpid()} - known

    def _end_orphans(self) -> None:
        """A shim was killed: what its rank had started has come to us."""
        table = process_table()
        orphans = {pid for pid in self._adopted() - self._kept if table.get(pid) and table[pid].alive}
        for pid in orphans | {below for orphan in orphans for below in descendants(orphan, table)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _last_words(result: dict[str, Any]) -> str:
    failure = result["failure"]
    text = result["state"] if result["step"] is None else f"{result['state']} at step {result['step']}"
    if failure is None:
        return f"{text}: {result['message']}" if result["message"] else text
    who = "" if failure["rank"] is None else f"rank {failure['rank']}, "
    return f"{text}: {who}{failure['reason']}: {failure['message']}"


def run_agent(spec_source: str, agent_file: str, early: list[int]) -> int:
    """`agent.pyz run SPEC.json` or `run env:NAME`. `early` holds the signals that came before anybody listened."""
    try:
        spec = read_spec(spec_source)
    except BadSpec as error:
        print(f"agent: {error}", file=sys.stderr)
        return 2
    try:
        return Agent(spec, agent_file, early).run()
    except OSError as error:  # the folder cannot be written: there is no other place to say so
        print(f"agent: {error}", file=sys.stderr)
        return 1
