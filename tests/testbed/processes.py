"""Child programs of the testbed: started, recorded, and stopped by process id.

Each process has one JSON record in the state folder. A record names a process by pid *and* start time *and*
boot, so a pid that the system has given to somebody else is never signalled. Nothing is ever killed by name.
"""

import contextlib
import os
import queue
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal

import msgspec

_KILL_TIMEOUT_S = 60.0

# Runs in the child, becomes the program. A wrapper and not a `preexec_fn`, because the latter runs Python
# code between fork and exec, which can deadlock in a process with threads.
_WRAPPER = """
import os, sys
parent, cwd, argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
if parent:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the line above: nobody would tell us
try:
    os.chdir(cwd)
    os.execv(argv[0], argv)
except OSError as error:
    print(f"cannot start {argv[0]}: {error}", file=sys.stderr, flush=True)
    os._exit(127)
"""


class ProcessError(Exception):
    """A program did not start, or did not end when told to."""


class ProcessRecord(msgspec.Struct, frozen=True):
    """What is known of one started process; enough to find it again and to start it again."""

    name: str
    pid: int
    start_ticks: int
    """Field 22 of /proc/<pid>/stat: with the pid and the boot id, a name that is never used twice."""
    boot_id: str
    argv: tuple[str, ...]
    log: str
    cwd: str
    env: dict[str, str]
    """What was added to the environment of the starting process."""
    die_with_parent: bool


def dying_with_parent(argv: Sequence[str], *, cwd: Path | None = None) -> list[str]:
    """The command line of a child that the kernel kills when the *thread* that started it ends.

    Linux ties PR_SET_PDEATHSIG to the thread that created the child, not to its process: start it from a
    thread that lives as long as the process does. (`Processes.start` takes care of that.) Grandchildren are
    not covered.
    """
    return _wrapped(argv, parent=os.getpid(), cwd=cwd or Path.cwd())


def process_state(record: ProcessRecord) -> Literal["running", "zombie", "gone"]:
    """What has become of exactly this process; another one that got its pid makes it "gone"."""
    if record.boot_id != _boot_id():
        return "gone"
    stat = _stat(record.pid)
    if stat is None or stat[1] != record.start_ticks:
        return "gone"
    return "zombie" if stat[0] in "ZX" else "running"


class Processes:
    """The processes of one state folder: `<folder>/processes/*.json` and `<folder>/logs/*.log`.

    Another Python process may open the same folder and stop what this one started.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self._records = folder / "processes"

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        die_with_parent: bool,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ProcessRecord:
        """Start a program in a session of its own; its output is appended to `<folder>/logs/<name>.log`.

        With `die_with_parent` the kernel kills it when this Python process ends, however that happens. `env`
        is added to our own environment. Returns at once: whether the program does its work is for the caller
        to find out.
        """
        if self.alive(name):
            raise ProcessError(f"{name} runs already (pid {self.record(name).pid}); stop it first")
        words = [str(word) for word in argv]
        program = shutil.which(words[0])
        if program is None:
            raise ProcessError(f"cannot start {name}: there is no program {words[0]}")
        words[0] = program
        self.logs.mkdir(parents=True, exist_ok=True)
        self._records.mkdir(parents=True, exist_ok=True)
        where = (cwd or Path.cwd()).absolute()
        log = (self.logs / f"{name}.log").absolute()
        command = _wrapped(words, parent=os.getpid() if die_with_parent else 0, cwd=where)
        added = dict(env or {})
        pid = _spawn(command, log, {**os.environ, **added}, from_lasting_thread=die_with_parent)
        stat = _stat(pid)  # our child and not yet waited for: it is there, if only as a zombie
        if stat is None:
            raise ProcessError(f"{name} (pid {pid}) vanished while it was started")
        record = ProcessRecord(
            name, pid, stat[1], _boot_id(), tuple(words), str(log), str(where), added, die_with_parent
        )
        self._write(record)
        return record

    def records(self) -> list[ProcessRecord]:
        """All recorded processes, dead or alive, in the order they were started."""
        found = []
        for path in self._records.glob("*.json"):
            with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
                found.append(msgspec.json.decode(path.read_bytes(), type=ProcessRecord))
        return sorted(found, key=lambda record: (record.start_ticks, record.pid))

    def record(self, name: str) -> ProcessRecord:
        """The record of one process; ProcessError when it was never started here."""
        try:
            return msgspec.json.decode(self._path(name).read_bytes(), type=ProcessRecord)
        except FileNotFoundError:
            raise ProcessError(f"no process {name} was started in {self.folder}") from None

    def alive(self, name: str) -> bool:
        """Whether it runs. A zombie is dead, and one of ours is cleared away by asking."""
        return self._path(name).exists() and _alive(self.record(name))

    def log(self, name: str) -> Path:
        """Where the output of this process goes."""
        return self.logs / f"{name}.log"

    def log_tail(self, name: str, lines: int = 20) -> str:
        """The end of its log, for an error message."""
        path = self.log(name)
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Send a signal; False when the process is gone."""
        return _signal(self.record(name), number)

    def wait(self, name: str, timeout: float) -> bool:
        """Wait for its end; False when it still runs after `timeout` seconds."""
        return _wait(self.record(name), timeout)

    def stop(self, name: str, timeout: float = 10.0) -> None:
        """SIGTERM, and SIGKILL for what still runs after `timeout` seconds. Returns when it is gone."""
        if self._path(name).exists():
            _stop([self.record(name)], timeout)

    def kill9(self, name: str) -> None:
        """SIGKILL, and wait for the end."""
        self.stop(name, timeout=0)

    def forget(self, name: str) -> None:
        """SIGKILL it if it runs, and remove its record: it is no longer one of ours."""
        self.kill9(name)
        self._path(name).unlink(missing_ok=True)

    def restart(self, name: str) -> ProcessRecord:
        """Start it again with the same command line, folder and environment; the log goes on."""
        old = self.record(name)
        if _alive(old):
            raise ProcessError(f"{name} still runs (pid {old.pid}); stop it before it is restarted")
        return self.start(name, old.argv, die_with_parent=old.die_with_parent, cwd=Path(old.cwd), env=old.env)

    def stop_all(self, timeout: float = 10.0) -> None:
        """Stop everything at the same time; `timeout=0` goes straight to SIGKILL. Records are removed."""
        records = self.records()
        _stop(records, timeout)
        for record in records:
            self._path(record.name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._records / f"{name}.json"

    def _write(self, record: ProcessRecord) -> None:
        unfinished = self._path(record.name).with_suffix(".new")
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
        unfinished.replace(self._path(record.name))


def clear_leftovers(folder: Path) -> list[str]:
    """Kill what the records of a crashed run still truthfully name; returns the names that were alive."""
    processes = Processes(folder)
    alive = [record.name for record in processes.records() if _alive(record)]
    processes.stop_all(timeout=0)
    return alive


def _wrapped(argv: Sequence[str], *, parent: int, cwd: Path) -> list[str]:
    # -I -S: no user settings and no site packages, so that the wrapper is gone within some 15 ms.
    return [sys.executable, "-I", "-S", "-c", _WRAPPER, str(parent), str(cwd), *argv]


def _spawn(argv: list[str], log: Path, env: Mapping[str, str], *, from_lasting_thread: bool) -> int:
    def spawn() -> int:
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.posix_spawn(
            argv[0],
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ],
        )

    if not from_lasting_thread or threading.current_thread() is threading.main_thread():
        return spawn()
    return _spawner().submit(spawn)


class _Spawner:
    """One thread that lives as long as this process, for children that must not die with a short-lived
    thread.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._work: queue.Queue[tuple[Future[int], Callable[[], int]]] = queue.Queue()
        threading.Thread(target=self._run, name="testbed-spawner", daemon=True).start()

    def submit(self, spawn: Callable[[], int]) -> int:
        done: Future[int] = Future()
        self._work.put((done, spawn))
        return done.result()

    def _run(self) -> None:
        while True:
            done, spawn = self._work.get()
            try:
                done.set_result(spawn())
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for it
                done.set_exception(error)


_spawner_lock = threading.Lock()
_spawner_of_this_process: _Spawner | None = None


def _spawner() -> _Spawner:
    global _spawner_of_this_process
    with _spawner_lock:
        if _spawner_of_this_process is None or _spawner_of_this_process.pid != os.getpid():
            _spawner_of_this_process = _Spawner()
        return _spawner_of_this_process


def _stop(records: Sequence[ProcessRecord], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    if timeout > 0:
        for record in records:
            _signal(record, signal.SIGTERM)
            _signal(record, signal.SIGCONT)  # a stopped process would never see the SIGTERM
        for record in records:
            _wait(record, deadline - time.monotonic())
    for record in records:
        _signal(record, signal.SIGKILL)
    for record in records:
        if not _wait(record, _KILL_TIMEOUT_S):
            raise ProcessError(f"{record.name} (pid {record.pid}) still runs {_KILL_TIMEOUT_S:g} s after SIGKILL")


def _alive(record: ProcessRecord) -> bool:
    state = process_state(record)
    if state == "zombie":
        _reap(record)
    return state == "running"


def _signal(record: ProcessRecord, number: signal.Signals) -> bool:
    with _pidfd(record) as pidfd:
        if pidfd is None or process_state(record) != "running":
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)
            return True
        return False


def _wait(record: ProcessRecord, timeout: float) -> bool:
    # Not by its state alone: a program with threads is a zombie before its last thread, and with it its ports
    # and its memory, is gone. The handle becomes readable after that.
    with _pidfd(record) as pidfd:
        if pidfd is not None and not select.select([pidfd], [], [], max(timeout, 0))[0]:
            return False
        if pidfd is not None:
            _reap(record)
    return True


@contextlib.contextmanager
def _pidfd(record: ProcessRecord) -> Iterator[int | None]:
    """A handle on exactly this process, if it is there: checked after it is open, so the pid cannot change
    hands.
    """
    try:
        pidfd = os.pidfd_open(record.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield pidfd if process_state(record) != "gone" else None
    finally:
        os.close(pidfd)


def _reap(record: ProcessRecord) -> None:
    with contextlib.suppress(ChildProcessError):  # not our child: its parent clears it away
        os.waitpid(record.pid, os.WNOHANG)


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time in clock ticks since boot."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the command name may hold spaces and parentheses
    return fields[0], int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
