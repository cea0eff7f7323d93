"""Ranks that stand still."""

from __future__ import annotations

import sys
import time

import pytest

from integration.agent.worker import Worker

REPORT = """
import json, os, sys, time
def report(**fields):
    path = os.environ["ORCHESTRA_PROGRESS_FILE"]
    with open(path + ".tmp", "w") as file:
        json.dump({"time": time.time(), **fields}, file)
    os.replace(path + ".tmp", path)
"""

ABSENT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(1, 4):
    dist.all_reduce(torch.ones(1))
    REPORT
print("three steps", flush=True)
def fetch_forever():
    time.sleep(100)
if rank == 1:
    fetch_forever()
ENTER
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.torch
def test_the_rank_absent_from_an_all_reduce_is_named(worker: Worker) -> None:
    script = ABSENT.replace("REPORT", "report(step=step, collective=step)").replace(
        "ENTER", "report(step=3, collective=4)"
    )
    worker.script("train.py", REPORT + script)
    worker.start([sys.executable, "-u", "train.py"], **worker.torchrun(restarts=3), hangTimeoutSeconds=2)
    assert worker.wait(40) == 76, worker.stdout
    assert worker.result["state"] == "hang"
    assert worker.result["hang"]["missing"] == [1]
    assert worker.result["hang"]["waiting"] == [0]
    assert worker.failure["rank"] == 1
    assert worker.failure["reason"] == "Hang"
    assert "fetch_forever" in worker.failure["message"]
    assert any("fetch_forever" in line for line in worker.failure["lines"])
    assert any("all_reduce" in line for line in worker.tagged("r0")), "the stacks are in the log"
    assert worker.alive() == {}


@pytest.mark.torch
def test_without_reports_the_stacks_tell_who_is_missing(worker: Worker) -> None:
    worker.script("train.py", ABSENT.replace("REPORT", "pass").replace("ENTER", ""))
    worker.start([sys.executable, "-u", "train.py"], **worker.torchrun(), hangTimeoutSeconds=3)
    assert worker.wait(40) == 76, worker.stdout
    assert worker.result["hang"]["missing"] == [1]


def test_an_announced_phase_is_no_hang(worker: Worker) -> None:
    worker.script(
        "train.py", REPORT + "report(step=1, phase='compile', phaseLimitSeconds=60)\ntime.sleep(4)\nprint('compiled')"
    )
    assert worker.start([sys.executable, "-u", "train.py"], hangTimeoutSeconds=1).wait() == 0


def test_a_phase_that_outlasts_its_limit_is(worker: Worker) -> None:
    worker.script("train.py", REPORT + "report(step=1, phase='save', phaseLimitSeconds=1)\ntime.sleep(60)")
    assert worker.start([sys.executable, "-u", "train.py"]).wait() == 76


def test_a_foreign_script_that_sleeps_is_left_alone_by_default(worker: Worker) -> None:
    worker.script("train.py", "import time; time.sleep(3)")
    assert worker.start([sys.executable, "-u", "train.py"]).wait() == 0


def test_output_or_cpu_time_is_life_and_silence_is_a_hang_where_a_timeout_is_set(worker: Worker) -> None:
    worker.script(
        "train.py",
        "import time\nfor _ in range(4):\n    time.sleep(0.8)\n    print('tick')\nend = time.monotonic() + 4\n"
        "while time.monotonic() < end: pass\nprint('silent')\ntime.sleep(60)\n",
    )
    begin = time.monotonic()
    assert worker.start([sys.executable, "-u", "train.py"], hangTimeoutSeconds=2).wait() == 76
    assert worker.tagged("r0").index("silent") == 4
    assert time.monotonic() - begin < 15
    assert "rank 0 is in <module> (train.py:8)" in worker.failure["message"]
