"""kill -9 of each party in turn: nothing of the worker is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from integration.agent.worker import Worker, until

WITH_HELPERS = """
import os, subprocess, sys, time
sleep = "import time; time.sleep(100)"
# As a data loader's worker, as a daemon in a session of its own, and as a child whose parent is already gone.
subprocess.Popen([sys.executable, "-c", sleep])
subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
subprocess.run(["sh", "-c", "sleep 100 &"])
print("ready", os.getpid(), os.getppid(), flush=True)
time.sleep(100)
"""


def pids(worker: Worker, rank: int = 0) -> tuple[int, int]:
    """Main process and shim of a rank."""
    line = until(lambda: [text for text in worker.tagged(f"r{rank}") if text.startswith("ready")], 20, "ready")[-1]
    _, main, shim = line.split()
    return int(main), int(shim)


def torchrun_pid(worker: Worker) -> int:
    _, shim = pids(worker)
    return int(Path(f"/proc/{shim}/stat").read_text().rpartition(")")[2].split()[1])


def assert_gone(worker: Worker, seconds: float = 2.0) -> None:
    until(lambda: not worker.alive(), seconds, f"the end of {worker.alive()}")


def ranks_alive(worker: Worker) -> list[str]:
    """Shims, ranks and what they started; not torchrun, which takes its time to leave."""
    lines = worker.alive().values()
    return [line for line in lines if ("train.py" in line or "sleep" in line) and "torch.distributed.run" not in line]


def ready(worker: Worker, launcher: str) -> None:
    worker.script("train.py", WITH_HELPERS)
    fields = worker.torchrun() if launcher == "torchrun" else {}
    worker.start([sys.executable, "-u", "train.py"], **fields)
    for rank in range(2 if launcher == "torchrun" else 1):
        pids(worker, rank)
    helpers = [line for line in worker.alive().values() if "sleep" in line]
    assert len(helpers) == (6 if launcher == "torchrun" else 3)


@pytest.mark.torch
@pytest.mark.parametrize("victim", ["agent", "torchrun", "shim", "rank"])
def test_nothing_survives_under_torchrun(worker: Worker, victim: str) -> None:
    ready(worker, "torchrun")
    assert worker.process is not None
    main, shim = pids(worker, 1)
    target = {"agent": worker.process.pid, "torchrun": torchrun_pid(worker), "shim": shim, "rank": main}[victim]
    os.kill(target, signal.SIGKILL)
    begin = time.monotonic()
    until(lambda: not ranks_alive(worker), 2, "the end of all ranks")
    print(f"no rank after {time.monotonic() - begin:.2f} s")
    code = worker.wait(5)  # torchrun takes a second to put its papers in order
    assert_gone(worker)
    print(f"nothing after {time.monotonic() - begin:.2f} s")
    if victim == "agent":
        assert code == -signal.SIGKILL
        return
    assert code == 1
    assert worker.failure["reason"] == "Killed"
    assert worker.failure["rank"] == (None if victim == "torchrun" else 1)


@pytest.mark.parametrize("victim", ["agent", "shim", "rank", "agent and shim", "guard and agent"])
def test_nothing_survives_without_a_launcher(worker: Worker, victim: str) -> None:
    ready(worker, "none")
    assert worker.process is not None
    main, shim = pids(worker)
    agent = worker.process.pid
    guard = next(pid for pid, line in worker.alive().items() if " run " in line and pid != agent)
    targets = {"agent": [agent], "shim": [shim], "rank": [main], "agent and shim": [agent, shim],
               "guard and agent": [guard, agent]}[victim]  # fmt: skip
    for pid in targets:
        os.kill(pid, signal.SIGKILL)
    assert_gone(worker)


@pytest.mark.torch
def test_a_killed_shim_is_restarted_in_place_and_its_helpers_are_ended(worker: Worker) -> None:
    worker.script("train.py", WITH_HELPERS)
    worker.start([sys.executable, "-u", "train.py"], **worker.torchrun(restarts=1))
    pids(worker, 0)
    first_main, shim = pids(worker, 1)
    os.kill(shim, signal.SIGKILL)
    until(lambda: pids(worker, 1)[0] != first_main and pids(worker, 0), 20, "the second round")
    until(lambda: len([line for line in worker.alive().values() if "sleep" in line]) == 6, 2, "6 helpers, not 12")


def test_the_worker_ends_with_the_process_that_watches_over_it(worker: Worker) -> None:
    watcher = os.fork()
    if watcher == 0:
        worker.script("train.py", WITH_HELPERS)
        worker.start([sys.executable, "-u", "train.py"], parentPid=os.getpid())
        time.sleep(100)
        os._exit(0)
    pids(worker)
    os.kill(watcher, signal.SIGKILL)
    os.waitpid(watcher, 0)
    assert_gone(worker)
    assert worker.result["state"] == "stopped"
    assert worker.result["reason"] == "ParentLost"


def test_what_set_up_left_running_serves_the_ranks_and_ends_with_the_worker(worker: Worker) -> None:
    worker.script("train.py", WITH_HELPERS)
    worker.start([sys.executable, "-u", "train.py"], setup=["sh", "-c", "sleep 77 & echo set up"])
    pids(worker)
    assert any("sleep 77" in line for line in worker.alive().values())
    worker.stop()
    assert worker.wait(5) == 75
    assert worker.alive() == {}
