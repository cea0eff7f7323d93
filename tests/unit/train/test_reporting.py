"""Progress: what is written, and how often."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from orchestra.train import reporting
from orchestra.train.reporting import Reporter
from testbed.waiting import wait_until


def content(path: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(path.read_text())
    return answer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress.json"


def test_the_last_of_many_reports_gets_there_and_few_writes_are_made(path: Path) -> None:
    reporter = Reporter(path, interval=0.2)
    files: set[int] = set()
    began = time.monotonic()
    for step in range(1, 501):
        reporter.report(step=step, totalSteps=500)
        time.sleep(0.001)
        if path.exists():
            files.add(path.stat().st_mtime_ns)
    duration = time.monotonic() - began
    wait_until("the last step is written", lambda: content(path)["step"] == 500, timeout=5)
    assert 1 <= len(files) <= duration / 0.2 + 1
    assert not list(path.parent.glob("*.tmp"))


def test_a_change_of_phase_is_written_at_once(path: Path) -> None:
    reporter = Reporter(path, interval=60)
    reporter.report(step=1)
    wait_until("the first report", path.exists, timeout=5)
    reporter.report(step=2)
    reporter.enter("compile", 600)
    assert content(path) | {"time": 0} == {
        "time": 0,
        "phase": "compile",
        "phaseLimitSeconds": 600,
        "step": 2,
        "stepSeconds": pytest.approx(0, abs=5),
    }
    reporter.enter("save", 30)
    assert content(path)["phaseLimitSeconds"] == 30
    reporter.leave()
    assert content(path)["phase"] == "compile"
    reporter.leave()
    assert content(path)["phase"] == "train"
    assert "phaseLimitSeconds" not in content(path)


def test_before_the_first_step_the_phase_is_init(path: Path) -> None:
    reporter = Reporter(path)
    reporter.flush()
    assert content(path)["phase"] == "init"


def test_step_time_and_remaining_time_leave_phases_out(path: Path) -> None:
    reporter = Reporter(path, interval=60)
    for step in range(1, 6):
        time.sleep(0.02)
        reporter.report(step=step, totalSteps=10)
    reporter.enter("save", 5)
    time.sleep(0.5)
    reporter.leave()
    time.sleep(0.02)
    reporter.report(step=6)
    reporter.flush()
    assert 0.02 <= content(path)["stepSeconds"] < 0.2
    assert 0.08 <= content(path)["etaSeconds"] < 0.5 * 4


def test_collectives_are_counted(path: Path) -> None:
    reporter = Reporter(path, interval=0.01)
    for _ in range(3):
        reporter.collective()
    wait_until("the count is written", lambda: path.exists() and content(path)["collective"] == 3, timeout=5)


def test_a_loss_that_is_not_a_number_does_not_spoil_the_file(path: Path) -> None:
    reporter = Reporter(path, interval=60)
    reporter.report(step=3, loss=float("nan"))
    reporter.flush()
    assert content(path)["step"] == 3
    assert "loss" not in content(path)


def test_a_folder_that_is_gone_does_not_stop_training(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reporter = Reporter(path / "gone" / "progress.json", interval=60)
    reporter.report(step=1)
    reporter.flush()
    reporter.flush()
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1


def test_without_an_agent_nothing_is_written_and_it_costs_next_to_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRA_PROGRESS_FILE", raising=False)
    reporting.reporter.cache_clear()
    began = time.process_time()
    for step in range(10_000):
        reporting.progress(step=step, total_steps=10_000)
        reporting.collective()
    with reporting.phase("eval", limit=1):
        pass
    seconds = time.process_time() - began
    reporting.reporter.cache_clear()
    assert not list(tmp_path.iterdir())
    assert seconds < 0.5
