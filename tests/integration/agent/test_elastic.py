"""Workers of an elastic job that come and go: each is an agent around a real torchrun, and the store is nobody's.

The end-to-end test of the operator shows the same on real nodes; this is the agent's part of it alone.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.agent.worker import Worker, free_port, until

pytestmark = [pytest.mark.torch, pytest.mark.soak, pytest.mark.timeout(900)]

SLOW = 180.0
STORE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
time.sleep(600)
"""
TRAINS_UNTIL_ALL_MAY_END = """
import os, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
size = dist.get_world_size()
print("world", size, flush=True)
while True:
    votes = torch.tensor([float(os.path.exists("end"))])
    dist.all_reduce(votes)
    if votes.item() == size:
        break
    time.sleep(0.1)
"""


class Elastic:
    """One to three workers around one store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.store = subprocess.Popen([sys.executable, "-c", STORE, str(self.port)])
        self.workers: list[Worker] = []

    def add(self) -> Worker:
        made = Worker(self.folder / str(len(self.workers)))
        made.code = self.folder
        made.script("train.py", TRAINS_UNTIL_ALL_MAY_END)
        fields: dict[str, Any] = made.torchrun(procs=1, restarts=1000, nodes="1:3", port=self.port)
        conf = "is_host=0,join_timeout=600,last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
        argv = [word for word in fields["launcherArgv"] if not word.startswith("--rdzv-conf")]
        fields["launcherArgv"] = [*argv, f"--rdzv-conf={conf}"]
        made.start([sys.executable, "-u", "train.py"], nodes=3, failuresLeft=0, **fields)
        self.workers.append(made)
        return made

    def wait_for(self, size: int, *members: Worker) -> None:
        """Until each of these trains in a world of this size."""
        said = f"world {size}"

        def last(one: Worker) -> list[str]:
            return [text for _, text in one.log() if text.startswith("world")][-1:]

        until(lambda: all(last(one) == [said] for one in members), SLOW, said)


@pytest.fixture
def elastic(tmp_path: Path) -> Iterator[Elastic]:
    made = Elastic(tmp_path)
    yield made
    made.store.kill()
    made.store.wait()
    for one in made.workers:
        one.end()


def test_a_worker_joins_and_another_is_lost_and_no_budget_is_spent(elastic: Elastic) -> None:
    first, second = elastic.add(), elastic.add()
    elastic.wait_for(2, first, second)
    third = elastic.add()
    elastic.wait_for(3, first, second, third)
    assert first.process is not None
    first.process.send_signal(signal.SIGKILL)
    elastic.wait_for(2, second, third)
    fourth = elastic.add()
    elastic.wait_for(3, second, third, fourth)
    (elastic.folder / "end").touch()
    for one in (second, third, fourth):
        assert one.wait(SLOW) == 0, one.stdout
        assert (one.result["state"], one.result["restarts"]) == ("done", 0)
