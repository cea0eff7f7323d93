"""A job that meets by etcd-v2 and names no etcd, on a machine that has one on its PATH."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from local_engine import Local
from testbed import etcd_v2
from testbed.ports import free_port
from testbed.waiting import wait_until

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


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from orchestra.local import etcd
with etcd.running(etcd.usable()[0], "127.0.0.1:{free_port()}", Path({str(tmp_path / "etcd")!r})):
    print("up", flush=True)
    time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "up\n"
    assert len(serving_in(tmp_path)) == 1
    parent.kill()
    parent.communicate()
    wait_until("etcd is gone", lambda: not serving_in(tmp_path), timeout=60)


def serving_in(folder: Path) -> list[int]:
    """Those whose data are there."""
    words = f"--data-dir={folder}/etcd/data".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
