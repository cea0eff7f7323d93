"""`doctor --job` with real torchrun processes on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import a_cpu_queue, a_job
from orchestra.cli.preflight import preflight
from orchestra.local.engine import LocalEngine
from orchestra.local.home import Home

pytestmark = pytest.mark.torch


def test_the_jobs_own_workers_are_asked_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    engine = LocalEngine(Home(tmp_path / "home"))
    job = a_job("mine", numNodes=2, procsPerNode=1, command="python does-not-exist.py")
    found = preflight(engine, job, a_cpu_queue(), cpu=False, seconds=0.5, patience=300)
    states = {one.about: one.state for one in found}
    assert {"rendezvous", "torch", "interface", "all-reduce"} <= set(states)
    assert "missing" not in states.values(), found
    assert engine.jobs() == []


def test_workers_that_fail_are_told_with_their_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    engine = LocalEngine(Home(tmp_path / "home"))
    job = a_job("broken", setupCommand="echo there is no disk >&2; exit 3")
    (found,) = preflight(engine, job, a_cpu_queue(), cpu=False, seconds=0.5, patience=300)
    assert (found.about, found.state) == ("workers", "missing")
    assert engine.jobs() == []
