"""What the facts of `doctor --job` mean."""

from __future__ import annotations

from typing import Any

from builders import a_job, a_queue
from orchestra.cli.preflight import judge
from orchestra.plan import plan


def rank(number: int, **facts: Any) -> dict[str, Any]:
    return {
        "rank": number, "local": number % 2, "processes": 2, "node": number // 2, "host": f"h{number // 2}",
        "torch": "2.13.0", "nccl": "2.27", "gpus": 2, "shmBytes": 1 << 30,
        "master": {"name": "job-0.job", "port": 29500, "seconds": 0.002},
        "interface": {"asked": "eth0", "there": True, "known": ["lo", "eth0"]}, "folders": {"/out": ""},
    } | facts  # fmt: skip


def states(*ranks: dict[str, Any]) -> dict[str, str]:
    planned = plan(a_queue(gpus=2), a_job(numNodes=2))
    told = {"ranks": list(ranks), "backend": "nccl", "bandwidth": [{"bytes": 1 << 20, "busBytesPerSecond": 3e9}]}
    return {one.about: one.state for one in judge(told, planned)}


def test_all_is_well() -> None:
    assert set(states(*map(rank, range(4))).values()) == {"ok"}


def test_each_thing_that_can_be_wrong_is_named() -> None:
    good = [rank(0), rank(1), rank(2)]
    unreachable = {"name": "job-0.job", "port": 29500, "problem": "Name or service not known"}
    assert states(*good, rank(3, master=unreachable))["rendezvous"] == "missing"
    assert states(*good, rank(3, torch="2.12.0"))["torch"] == "missing"
    assert states(*good, rank(3, nccl="2.26"))["nccl"] == "missing"
    assert states(*good, rank(3, interface={"asked": "ib0", "there": False, "known": ["lo"]}))["interface"] == "missing"
    assert states(*good, rank(3, shmBytes=64 << 20))["shared memory"] == "warning"
    assert states(*good, rank(3, gpus=1))["GPUs"] == "missing"
    assert states(*good, rank(3, folders={"/out": "Read-only file system"}))["/out"] == "missing"
