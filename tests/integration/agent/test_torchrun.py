"""The agent around a real torchrun."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from integration.agent.worker import Worker, free_port, until

pytestmark = pytest.mark.torch

COOPERATIVE = """
import json, os, signal, subprocess, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print("training", flush=True)
while not asked:
    time.sleep(0.01)
assert os.path.exists(os.environ["ORCHESTRA_STOP_FILE"])
time.sleep(0.7)
assert helper.poll() is None, "the helper was ended before the rank had saved"
result = {"state": "stopped", "step": 12, "checkpoint": "/ckpt/12"}
open(os.environ["ORCHESTRA_RESULT_FILE"], "w").write(json.dumps(result))
"""


def test_ranks_are_tagged_and_a_crash_is_restarted_in_place(worker: Worker) -> None:
    worker.script(
        "train.py",
        "import os, signal, time\nr, n = os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print(f'rank {r} round {n}', flush=True)\n"
        "if n == '0':\n    if r == '1': os.kill(os.getpid(), signal.SIGKILL)\n    time.sleep(100)\n",
    )
    worker.start([sys.executable, "-u", "train.py"], **worker.torchrun(restarts=2))
    assert worker.wait() == 0, worker.stdout
    assert worker.result["state"] == "done"
    assert worker.result["restarts"] == 1
    for rank in (0, 1):
        assert worker.tagged(f"r{rank}") == [f"rank {rank} round 0", f"rank {rank} round 1"]
    assert any("rank 1 failed: Killed, ended by signal 9" in line for line in worker.tagged("agent"))
    record = json.loads((worker.folder / "ranks/1/exit.json").read_text())
    assert (record["exit"], record["round"]) == (0, 1)


def test_the_first_rank_to_fail_is_named_not_those_that_fell_with_it(worker: Worker) -> None:
    worker.script(
        "train.py",
        "import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(0.3)\n    raise KeyError('lost')\ntime.sleep(100)\n",
    )
    worker.start([sys.executable, "-u", "train.py"], **worker.torchrun(procs=3, restarts=1))
    begin = time.monotonic()
    assert worker.wait() == 1
    assert time.monotonic() - begin < 25, "the survivors were waited for"
    assert worker.failure["rank"] == 1
    assert worker.failure["reason"] == "Exception"
    assert worker.failure["message"] == "KeyError: 'lost'"
    assert worker.failure["lines"][0] == "Traceback (most recent call last):"
    assert worker.result["restarts"] == 1
    assert worker.alive() == {}


def test_a_stop_reaches_the_main_processes_only_and_torchrun_is_not_waited_for(worker: Worker) -> None:
    worker.script("train.py", COOPERATIVE)
    worker.start([sys.executable, "-u", "train.py"], **worker.torchrun())
    until(lambda: worker.tagged("r0") and worker.tagged("r1"), 20, "training")
    begin = time.monotonic()
    worker.stop()
    assert worker.wait(5) == 75, worker.stdout
    assert time.monotonic() - begin < 2.5
    assert worker.result["state"] == "stopped"
    assert worker.result["step"] == 12
    assert worker.result["checkpoint"] == "/ckpt/12"
    assert worker.result["failure"] is None
    assert worker.alive() == {}
    assert not (worker.folder / "stop.json").exists()


def test_a_rank_that_swallows_the_stop_is_ended_after_the_grace_period(worker: Worker) -> None:
    worker.script(
        "train.py",
        "import os, signal, time\nif os.environ['RANK'] == '1': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('training', flush=True)\ntime.sleep(100)\n",
    )
    worker.start([sys.executable, "-u", "train.py"], **worker.torchrun(), gracePeriodSeconds=3)
    until(lambda: worker.tagged("r0") and worker.tagged("r1"), 20, "training")
    begin = time.monotonic()
    worker.stop()
    assert worker.wait(10) == 75
    assert 2.5 < time.monotonic() - begin < 4
    assert "rank 1 did not stop" in worker.result["message"]
    assert worker.alive() == {}


def test_a_stop_while_waiting_for_another_node_is_immediate(worker: Worker) -> None:
    worker.script("train.py", "print('never')")
    worker.start([sys.executable, "-u", "train.py"], **worker.torchrun(nodes="2"), nodes=2)
    until(lambda: any("torch.distributed.run" in line for line in worker.alive().values()), 10, "torchrun")
    time.sleep(3)
    begin = time.monotonic()
    worker.stop()
    assert worker.wait(5) == 75
    assert time.monotonic() - begin < 2
    assert worker.result["state"] == "stopped"
    assert worker.alive() == {}


def test_one_node_of_two_is_stopped_and_both_agents_leave(worker: Worker, tmp_path: Path) -> None:
    """The ranks of the other node learn it from each other (here: a file), without any request of their own."""
    other = Worker(tmp_path / "other")
    script = COOPERATIVE.replace("while not asked:", f"while not asked and not os.path.exists('{tmp_path}/agreed'):")
    script = script.replace(
        'assert os.path.exists(os.environ["ORCHESTRA_STOP_FILE"])', f"open('{tmp_path}/agreed', 'w')"
    )
    fields = worker.torchrun(procs=1, nodes="2", port=free_port())
    argv: list[str] = fields.pop("launcherArgv")
    try:
        for node, each in enumerate((worker, other)):
            # The node that holds the rendezvous store is through first: the other must not fall with its launcher.
            each.script("train.py", script.replace("sleep(0.7)", f"sleep({0.7 + node})"))
            own = [word.replace("is_host=1", f"is_host={int(node == 0)}") for word in argv]
            each.start([sys.executable, "-u", "train.py"], **fields, launcherArgv=own, nodes=2, node=node)
        for each in (worker, other):
            each.says("training")
        begin = time.monotonic()
        worker.stop()
        assert other.wait(8) == 75
        assert worker.wait(8) == 75
        assert time.monotonic() - begin < 1.7 + 2
        assert worker.result["reason"] == "SIGTERM"
        assert other.result["reason"] == "PeerStopped"
        assert worker.result["checkpoint"] == other.result["checkpoint"] == "/ckpt/12"
    finally:
        other.end()


def test_a_missing_launcher_is_named(worker: Worker) -> None:
    fields = {**worker.torchrun(), "launcherArgv": ["no-torchrun-here", "--nnodes=1"]}
    assert worker.start(["true"], **fields).wait() == 1
    assert worker.failure["reason"] == "LauncherMissing"
    fields["launcherArgv"] = ["/usr/bin/python3", "-I", "-m", "torch.distributed.run"]
    assert worker.start(["true"], **fields).wait() == 1
    assert worker.failure["reason"] == "LauncherMissing"
    assert "No module named" in " ".join(worker.failure["lines"])


def test_a_port_in_use_is_named(worker: Worker) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        fields = worker.torchrun(port=taken.getsockname()[1])
        assert worker.start(["true"], **fields).wait() == 1
    assert worker.failure["reason"] == "PortInUse"
    assert worker.failure["rank"] is None


def test_a_node_that_is_done_early_keeps_the_store_for_the_others(worker: Worker, tmp_path: Path) -> None:
    other = Worker(tmp_path / "other")
    fields = worker.torchrun(procs=1, nodes="2", port=free_port())
    argv: list[str] = fields.pop("launcherArgv")
    try:
        for node, each in enumerate((worker, other)):
            each.script(
                "train.py", f"import time; print('training', flush=True); time.sleep({node * 6}); print('over')"
            )
            own = [word.replace("is_host=1", f"is_host={int(node == 0)}") for word in argv]
            each.start([sys.executable, "-u", "train.py"], **fields, launcherArgv=own, nodes=2, node=node)
        assert other.wait(40) == 0, other.stdout
        assert worker.wait(10) == 0, worker.stdout
        assert "over" in [text for _, text in other.log()]
    finally:
        other.end()
