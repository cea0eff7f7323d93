"""Programs without a launcher, and programs that know nothing of us."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

import pytest

from integration.agent.worker import Worker, free_port, until


def test_a_foreign_script_runs_unchanged(worker: Worker) -> None:
    worker.script(
        "hello.py", "import sys, os; print('args', sys.argv, __name__, os.getcwd()); print('oops', file=sys.stderr)"
    )
    assert worker.start([sys.executable, "hello.py", "--x", "1"]).wait() == 0
    assert worker.result["state"] == "done"
    assert worker.result["failure"] is None
    assert f"args ['hello.py', '--x', '1'] __main__ {worker.code}" in worker.tagged("r0")
    assert "oops" in worker.tagged("r0")
    assert "[r0] oops" in worker.stdout


def test_an_exit_code_is_a_failure_with_the_last_lines(worker: Worker) -> None:
    worker.script("three.py", "print('about to go'); raise SystemExit(3)")
    assert worker.start([sys.executable, "three.py"]).wait() == 1
    assert worker.result["state"] == "failed"
    assert worker.failure["reason"] == "ExitCode"
    assert worker.failure["exitCode"] == 3
    assert worker.failure["rank"] == 0
    assert worker.failure["lines"] == ["about to go"]


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        ("def f(:\n  pass\n", "SyntaxError", "bad.py"),
        ("import no_such_thing\n", "ImportError", "no_such_thing"),
        ("def f():\n  raise ValueError('x is 3')\nf()\n", "Exception", "ValueError: x is 3"),
        ("import os\nos.kill(os.getpid(), 11)\n", "Killed", "SIGSEGV"),
        ("import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\nsocket.socket().bind(s.getsockname())\n",
         "PortInUse", "Address already in use"),
        ("import sys; sys.exit('no luck')\n", "ExitCode", "code 1"),
    ],
)  # fmt: skip
def test_the_reason_is_true(worker: Worker, text: str, reason: str, message: str) -> None:
    worker.script("bad.py", text)
    assert worker.start([sys.executable, "-u", "bad.py"]).wait() == 1
    assert worker.failure["reason"] == reason
    assert message in worker.failure["message"]
    assert worker.failure["lines"]


@pytest.mark.parametrize(
    ("program", "reason", "message"),
    [
        ([sys.executable, "nowhere.py"], "FileNotFound", "nowhere.py"),
        ([sys.executable, "-m", "nowhere"], "ImportError", "nowhere"),
        (["no-such-program"], "FileNotFound", "no-such-program"),
    ],
)
def test_what_is_missing_is_named(worker: Worker, program: list[str], reason: str, message: str) -> None:
    assert worker.start(program).wait() == 1
    assert worker.failure["reason"] == reason
    assert message in worker.failure["message"]


def test_a_plain_server_is_stopped_by_signal(worker: Worker) -> None:
    port = free_port()
    worker.start([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"])
    worker.says("Serving HTTP")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        assert answer.status == 200
    worker.stop()
    assert worker.wait(5) == 75
    assert worker.result["state"] == "stopped"
    assert worker.result["reason"] == "SIGTERM"
    assert worker.result["failure"] is None
    assert worker.alive() == {}


def test_progress_bars_collapse_and_partial_lines_survive(worker: Worker) -> None:
    worker.script(
        "bar.py", "import sys\nfor i in range(500): print(f'\\r{i}%', end='')\nprint()\nprint('no newline', end='')"
    )
    assert worker.start([sys.executable, "bar.py"]).wait() == 0
    assert worker.tagged("r0") == ["499%", "no newline"]


def test_long_lines_are_cut_and_logs_rotate(worker: Worker) -> None:
    worker.script("much.py", "print('x' * 100_000)\nfor i in range(3000): print(f'line {i} ' + 'y' * 80)")
    assert worker.start([sys.executable, "much.py"], logBytes=100_000).wait() == 0
    logs = sorted((worker.folder / "logs").iterdir())
    assert [path.name for path in logs] == ["attempt-1.log", "attempt-1.log.1", "attempt-1.log.2", "attempt-1.log.3"]
    newest_last = [*reversed(logs[1:]), logs[0]]
    lines = [line.split(" ", 2)[2] for path in newest_last for line in path.read_text().splitlines() if " r0 " in line]
    assert lines[0] == "x" * 65536 + " … [34464 bytes cut]"
    assert [line.split(" ")[1] for line in lines[1:]] == [str(number) for number in range(3000)]


def test_a_reader_that_does_not_read_stops_nobody(worker: Worker) -> None:
    """The agent's standard output is a pipe that is full."""
    import os
    import subprocess

    worker.script("much.py", "for i in range(60000): print(f'line {i} ' + 'y' * 100)")
    worker.start([sys.executable, "much.py"])
    assert worker.wait() == 0
    read_end, write_end = os.pipe()
    argv = [sys.executable, "-I", "-S", str(worker.agent_file), "run", str(worker._spec_file)]
    worker.process = subprocess.Popen(argv, stdout=write_end)
    assert worker.wait(20) == 0
    os.close(write_end)
    os.close(read_end)


def test_set_up_runs_first_and_its_failure_is_told(worker: Worker) -> None:
    worker.script("after.py", "print(open('made').read())")
    fields = {"setup": ["sh", "-c", "echo making; cat given > made"], "files": {"given": "by set-up"}}
    assert worker.start([sys.executable, "after.py"], **fields).wait() == 0
    assert worker.tagged("setup") == ["making"]
    assert worker.tagged("r0") == ["by set-up"]
    assert worker.start([sys.executable, "after.py"], setup=["sh", "-c", "echo no >&2; exit 4"], attempt=2).wait() == 1
    assert worker.result["attempt"] == 2
    assert worker.failure["reason"] == "Setup"
    assert worker.failure["exitCode"] == 4
    assert worker.failure["lines"] == ["no"]


def test_a_stop_during_set_up_ends_it(worker: Worker) -> None:
    worker.start(["true"], setup=["sh", "-c", "echo sleeping; sleep 100 & sleep 100"])
    worker.says("sleeping")
    worker.stop()
    assert worker.wait(3) == 75
    assert worker.alive() == {}


def test_the_pages_show_state_and_progress(worker: Worker) -> None:
    worker.script(
        "report.py",
        "import json, os, time\nopen(os.environ['ORCHESTRA_PROGRESS_FILE'], 'w').write(json.dumps("
        "{'time': time.time(), 'step': 7, 'loss': 0.5}))\nprint('reported', flush=True)\ntime.sleep(100)\n",
    )
    worker.start([sys.executable, "report.py"])
    worker.says("reported")

    def page(path: str) -> str:
        with urllib.request.urlopen(f"http://{worker.about['address']}{path}") as answer:
            return str(answer.read().decode())

    assert page("/healthz") == "ok\n"
    progress = until(lambda: json.loads(page("/progress"))["progress"], 5, "progress")
    assert progress["step"] == 7
    assert json.loads(page("/progress"))["state"] == "running"
    assert 'orchestra_loss{job_name="test",node="0",rank="0"} 0.5' in page("/metrics")
    worker.stop()
    assert worker.wait(5) == 75
    assert worker.result["step"] == 7


def test_threads_are_shared_out_unless_set(worker: Worker) -> None:
    worker.script("omp.py", "import os; print('omp', os.environ['OMP_NUM_THREADS'])")
    assert worker.start([sys.executable, "omp.py"], procsPerNode=1000).wait() == 0
    assert worker.start([sys.executable, "omp.py"], env={"OMP_NUM_THREADS": "5"}).wait() == 0
    assert worker.tagged("r0") == ["omp 1", "omp 5"]


def test_a_stop_goes_to_the_program_behind_a_shell(worker: Worker) -> None:
    worker.script(
        "save.py",
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('training', flush=True)\ntime.sleep(100)\n",
    )
    worker.script("train.sh", f"{sys.executable} -u save.py\necho the shell goes on\n")
    worker.start(["bash", "train.sh"])
    worker.says("training")
    worker.stop()
    assert worker.wait(5) == 75
    assert worker.tagged("r0") == ["training", "saved", "the shell goes on"]


def test_a_result_of_an_earlier_attempt_is_not_taken_for_this_ones(worker: Worker) -> None:
    worker.script(
        "done.py",
        "import os; open(os.environ['ORCHESTRA_RESULT_FILE'], 'w').write('{\"state\": \"stopped\", \"step\": 9}')",
    )
    assert worker.start([sys.executable, "done.py"]).wait() == 75
    assert worker.result["step"] == 9
    assert worker.start([sys.executable, "-c", "raise SystemExit(3)"], attempt=2).wait() == 1
    assert worker.result["step"] is None
    assert (worker.folder / "logs/attempt-1.log").exists()


def test_the_engine_may_give_the_reason_of_a_stop(worker: Worker) -> None:
    worker.start(["sleep", "100"])
    until(lambda: len(worker.alive()) == 4, 5, "agent, guard, shim, program")
    (worker.folder / "stop.json").write_text(json.dumps({"reason": "Suspended", "attempt": 1}))
    worker.stop()
    assert worker.wait(5) == 75
    assert worker.result["reason"] == "Suspended"


def test_the_termination_log_has_at_most_4_kib(worker: Worker, tmp_path: Path) -> None:
    worker.script("bad.py", "for i in range(200): print('x' * 300)\nraise ValueError('y' * 9000)")
    log = tmp_path / "termination-log"
    log.write_text("")
    assert worker.start([sys.executable, "bad.py"], resultFile=str(log)).wait() == 1
    assert len(log.read_bytes()) <= 4096
    assert json.loads(log.read_text())["failure"]["reason"] == "Exception"


def test_probes_that_can_only_look_at_files(worker: Worker, tmp_path: Path) -> None:
    ready, healthy = tmp_path / "ready", tmp_path / "healthy"
    worker.script("waits.py", "import time\ntime.sleep(600)\n")
    worker.start([sys.executable, "waits.py"], readyFile=str(ready), healthyFile=str(healthy))
    until(lambda: ready.exists() and healthy.exists(), 30, "both files are there")
    first = healthy.stat().st_mtime
    until(lambda: healthy.stat().st_mtime > first, 30, "touched while the loop turns")
    worker.stop()
    assert worker.wait() == 75
    assert not ready.exists()
    assert not healthy.exists()
