"""Child programs are found again, stopped for certain, and never taken for somebody else's."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from testbed.processes import ProcessError, Processes, clear_leftovers, process_state
from testbed.waiting import wait_until

SLEEP = ["sleep", "300"]
DEAF = [sys.executable, "-c", "import signal, time; signal.signal(15, 1); print('deaf', flush=True); time.sleep(300)"]


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path) -> object:
    yield
    clear_leftovers(tmp_path)


def test_output_is_appended_to_one_log_over_restarts(processes: Processes) -> None:
    processes.start(
        "talker", ["sh", "-c", "echo to-stdout; echo to-stderr >&2; pwd"], die_with_parent=True, cwd=Path("/")
    )
    assert processes.wait("talker", 30)
    processes.restart("talker")
    assert processes.wait("talker", 30)
    assert processes.log("talker").read_text() == "to-stdout\nto-stderr\n/\n" * 2


def test_the_environment_is_ours_and_what_was_added(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    processes.start("env", ["sh", "-c", "echo $OURS $ADDED"], die_with_parent=False, env={"ADDED": "2"})
    assert processes.wait("env", 30)
    assert processes.log("env").read_text() == "1 2\n"


def test_a_program_that_does_not_exist_is_named(processes: Processes) -> None:
    with pytest.raises(ProcessError, match="no program /no/such/program"):
        processes.start("ghost", ["/no/such/program"], die_with_parent=True)


def test_a_running_program_is_not_started_twice(processes: Processes) -> None:
    processes.start("sleeper", SLEEP, die_with_parent=True)
    with pytest.raises(ProcessError, match="runs already"):
        processes.start("sleeper", SLEEP, die_with_parent=True)
    with pytest.raises(ProcessError, match="still runs"):
        processes.restart("sleeper")


def test_stop_ends_a_program_that_is_deaf_to_sigterm(processes: Processes) -> None:
    record = processes.start("deaf", DEAF, die_with_parent=True)
    wait_until("it is deaf", lambda: "deaf" in processes.log_tail("deaf"))
    processes.stop("deaf", timeout=0.2)
    assert process_state(record) == "gone"


def test_stop_ends_a_program_that_is_paused(processes: Processes) -> None:
    record = processes.start("sleeper", SLEEP, die_with_parent=True)
    processes.signal("sleeper", signal.SIGSTOP)
    processes.stop("sleeper", timeout=30)
    assert process_state(record) == "gone"


def test_a_zombie_counts_as_dead_and_is_cleared_away(processes: Processes) -> None:
    record = processes.start("short", ["true"], die_with_parent=True)
    wait_until("it ended and nobody waited for it", lambda: process_state(record) == "zombie")
    assert not processes.alive("short")
    assert process_state(record) == "gone"


def test_a_pid_that_changed_hands_is_left_alone(processes: Processes, tmp_path: Path) -> None:
    record = processes.start("sleeper", SLEEP, die_with_parent=True)
    path = tmp_path / "processes" / "sleeper.json"
    for lie in ({"start_ticks": record.start_ticks - 1}, {"boot_id": "another boot"}):
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, **lie)))
        assert not processes.alive("sleeper")
        assert not processes.signal("sleeper", signal.SIGKILL)
        processes.kill9("sleeper")
        assert clear_leftovers(tmp_path) == []
        assert process_state(record) == "running"
    path.write_bytes(msgspec.json.encode(record))
    assert clear_leftovers(tmp_path) == ["sleeper"]
    assert process_state(record) == "gone"


def test_another_python_process_can_stop_what_we_started(processes: Processes, tmp_path: Path) -> None:
    record = processes.start("sleeper", SLEEP, die_with_parent=False)
    script = "import sys, pathlib; from testbed.processes import *; Processes(pathlib.Path(sys.argv[1])).stop_all()"
    run_script(script, tmp_path)
    wait_until("it is dead", lambda: process_state(record) != "running")


def test_children_of_a_short_lived_thread_outlive_the_thread(processes: Processes) -> None:
    thread = threading.Thread(target=lambda: processes.start("sleeper", SLEEP, die_with_parent=True))
    thread.start()
    thread.join()
    # The kernel's signal would come with the thread's end, which join has seen: a moment is enough to be
    # sure.
    assert not processes.wait("sleeper", 0.3)


def test_a_killed_parent_takes_its_children_along(tmp_path: Path) -> None:
    script = """
import sys, pathlib, os, threading
from testbed.processes import *
processes = Processes(pathlib.Path(sys.argv[1]))
processes.start("from-main", ["sleep", "300"], die_with_parent=True)
thread = threading.Thread(target=lambda: processes.start("from-thread", ["sleep", "300"], die_with_parent=True))
thread.start(); thread.join()
processes.start("stays", ["sleep", "300"], die_with_parent=False)
os.kill(os.getpid(), 9)
"""
    assert run_script(script, tmp_path) == -signal.SIGKILL
    records = {record.name: record for record in Processes(tmp_path).records()}
    dying = [records["from-main"], records["from-thread"]]
    wait_until("both are dead", lambda: all(process_state(record) != "running" for record in dying))
    assert process_state(records["stays"]) == "running"
    assert clear_leftovers(tmp_path) == ["stays"]


def run_script(script: str, *arguments: Path) -> int:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=environment, check=False, timeout=60).returncode
