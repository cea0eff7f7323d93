"""A job that meets by etcd-v2 and names no etcd, on a machine that has one on its PATH."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from local_engine import Local
from testbed import etcd_v2

pytestmark = [pytest.mark.etcd_v2, pytest.mark.torch, pytest.mark.timeout(600)]

TRAINING = "python -m orchestra.train.smoke --epochs 2 --step-delay"
OLD: dict[str, Any] = {"numNodes": 2, "procsPerNode": 1, "distributed": {"rdzvBackend": "etcd-v2"}}
SLOW = 240.0


@pytest.fixture(autouse=True)
def _etcd_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "etcd").symlink_to(etcd_v2.program())
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def etcds(local: Local) -> list[int]:
    return [pid for pid, words in local.processes().items() if "--enable-v2" in words]


def test_two_nodes_meet_by_an_etcd_of_the_jobs_own(local: Local, tmp_path: Path) -> None:
    local.submit("old", f"{TRAINING} 0", **OLD)
    job = local.rest("old", SLOW)
    assert job.status is not None
    assert job.status.phase == "Succeeded", local.log("old")
    assert "steps=32" in local.log("old")
    folder = local.home.job("old", job.metadata.uid or "")
    assert "--rdzv-backend=etcd-v2" in (folder.node(1) / "launch.json").read_text()
    told = [event.message for event in local.engine.events("old") if event.reason == "Here"]
    assert f"rdzvBackend etcd-v2 without an endpoint: {tmp_path}/bin/etcd runs for this job" in told
    assert not (folder.root / "etcd" / "data").exists()
    local.nothing_left()


def test_it_ends_with_a_supervisor_that_is_killed(local: Local) -> None:
    local.submit("doomed", f"{TRAINING} 0.5", restartPolicy="Never", **OLD)
    local.step("doomed", 1, SLOW)
    assert len(etcds(local)) == 1
    os.kill(local.supervisor("doomed"), signal.SIGKILL)
    local.rest("doomed", SLOW)
    local.nothing_left(timeout=60)
