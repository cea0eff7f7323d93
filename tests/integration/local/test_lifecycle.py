"""The whole life of a job on this machine, with a script that needs no torch."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from engine_contract import EngineContract, reason_of
from local_engine import Local
from orchestra.api import Invalid
from orchestra.api.engine import NotFound


class TestLocalEngine(EngineContract):
    """The embedded engine keeps the contract of all engines."""

    @pytest.fixture
    def site(self, local: Local) -> Local:
        """The embedded engine."""
        return local


@pytest.mark.parametrize(
    ("code", "reason"),
    [("raise RuntimeError('kaputt')", "Exception"), ("import no_such_module", "ImportError"), ("x = (", "SyntaxError"),
     ("import os; os.kill(os.getpid(), 9)", "Killed")],
)  # fmt: skip
def test_the_true_reason_is_in_the_status(local: Local, code: str, reason: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"print('last words')\n{code}\n")
    local.submit("bad", [sys.executable, str(script)], launcher="none", restartPolicy="Never")
    job = local.rest("bad")
    assert job.status is not None
    assert job.status.failure is not None
    assert (job.status.phase, job.status.failure.reason, job.status.failure.rank) == ("Failed", reason, 0)
    if reason == "Exception":
        assert "kaputt" in (job.status.failure.message or "")
    assert local.cli("status", "bad").returncode == 100


def test_a_stop_that_is_ignored_ends_with_the_grace_period(local: Local) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    local.submit("deaf", [sys.executable, "-c", deaf], launcher="none", lifecycle={"gracePeriodSeconds": 1})
    local.wait("deaf", lambda _: "up" in local.log("deaf"))
    begun = time.monotonic()
    local.engine.cancel("deaf")
    job = local.rest("deaf")
    assert reason_of(job) == "Cancelled"
    assert time.monotonic() - begun < 30
    local.nothing_left()


def test_two_jobs_that_need_all_slots_run_one_after_the_other(local: Local) -> None:
    cores = len(os.sched_getaffinity(0))
    local.cooperative("first", 1000, 0.05, procsPerNode=cores, numNodes=1)
    local.step("first", 1)
    local.cooperative("second", 3, 0.01, procsPerNode=cores, numNodes=1)
    local.wait("second", lambda job: job.status and job.status.phase == "Queued")
    (cause,) = local.engine.why("second")
    assert "first" in cause.message
    assert cause.about == "queue"
    local.engine.suspend("first")
    assert local.rest("second").status.phase == "Succeeded"  # type: ignore[union-attr]
    assert local.engine.get("first").status.phase == "Suspended"  # type: ignore[union-attr]


def test_a_job_that_waits_too_long_fails_with_the_reason(local: Local) -> None:
    cores = len(os.sched_getaffinity(0))
    local.cooperative("holder", 1000, 0.05, procsPerNode=cores, numNodes=1)
    local.step("holder", 1)
    local.cooperative("hurried", 3, 0.01, numNodes=1, procsPerNode=cores, lifecycle={"pendingTimeoutSeconds": 1})
    job = local.rest("hurried")
    assert reason_of(job) == "PendingTimeout"
    local.engine.delete("holder", purge=True)
    local.nothing_left()


def test_the_supervisor_killed_is_noticed_and_resume_finishes_the_job(local: Local) -> None:
    local.cooperative("orphan", 40, 0.05)
    local.step("orphan", 3)
    os.kill(local.supervisor("orphan"), signal.SIGKILL)
    result = local.cli("status", "orphan", "-o", "json")
    assert '"phase": "Suspended"' in result.stdout
    assert "Interrupted" in result.stdout
    assert result.returncode == 103
    local.nothing_left()
    local.engine.resume("orphan", {})
    assert local.rest("orphan").status.phase == "Succeeded"  # type: ignore[union-attr]


def test_the_agent_killed_starts_a_new_attempt_for_free(local: Local) -> None:
    local.cooperative("agentless", 100, 0.05)
    local.step("agentless", 2)
    agent = next(pid for pid, words in local.processes().items() if "agent-" in words and " run " in words)
    os.kill(agent, signal.SIGKILL)
    job = local.rest("agentless")
    assert job.status is not None
    assert (job.status.phase, job.status.attempt, job.status.restarts) == ("Succeeded", 2, 0)
    local.nothing_left()


def test_a_terminated_supervisor_saves_first(local: Local) -> None:
    local.cooperative("polite", 1000, 0.05)
    local.step("polite", 2)
    os.kill(local.supervisor("polite"), signal.SIGTERM)
    job = local.rest("polite")
    assert (job.status.phase, reason_of(job)) == ("Suspended", "Interrupted")  # type: ignore[union-attr]
    assert "stopped at" in local.log("polite")
    local.nothing_left()


def test_a_finished_job_is_forgotten_when_its_time_is_over(local: Local) -> None:
    local.cooperative("brief", 1, 0.01, ttlSecondsAfterFinished=1)
    local.rest("brief")
    end = time.monotonic() + 20
    while time.monotonic() < end and local.engine.jobs():
        time.sleep(0.1)
    assert not local.engine.jobs()
    assert len(local.engine.history()) == 1


def test_a_hang_is_found_when_asked_for(local: Local) -> None:
    local.cooperative("stuck", 5, 0.05, "--hang-at", 3, restartPolicy="Never", lifecycle={"hangTimeoutSeconds": 2})
    job = local.rest("stuck")
    assert job.status is not None
    assert job.status.failure is not None
    assert (job.status.phase, job.status.failure.reason) == ("Failed", "Hang")
    local.nothing_left()


def test_a_plain_program_that_knows_nothing_of_us_runs_unchanged(local: Local, tmp_path: Path) -> None:
    local.submit("server", [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"], launcher="none")
    local.wait("server", lambda _: "Serving HTTP" in local.log("server"))
    local.engine.cancel("server")
    local.rest("server")
    local.submit("shell", ["sh", "-c", "echo $NODE_RANK of $NNODES; pwd"], numNodes=2, folder=tmp_path)
    assert local.rest("shell").status.phase == "Succeeded"  # type: ignore[union-attr]
    log = local.log("shell")
    assert {"[r0] 0 of 2", "[r1] 1 of 2"} <= set(log.splitlines())
    assert f"[r0] {local.home.root}/jobs/shell-" in log, "it runs on a snapshot of the folder"
    local.nothing_left()


def test_delete_keeps_the_output_unless_purged(local: Local) -> None:
    local.cooperative("kept", 2, 0.01)
    local.rest("kept")
    output = local.engine.output("kept")
    local.engine.delete("kept")
    assert (output / "step.json").exists()
    local.cooperative("gone", 2, 0.01)
    local.rest("gone")
    output = local.engine.output("gone")
    local.engine.delete("gone", purge=True)
    assert not output.exists()


def test_a_job_that_the_machine_cannot_hold_is_refused_and_not_kept(local: Local) -> None:
    with pytest.raises(Invalid, match="needs 16 GPUs"):
        local.submit("gpus", "python x.py", overrides={"nodeResources": {"gpus": 8}}, numGPUs=16)
    with pytest.raises(NotFound):
        local.engine.get("gpus")


def test_a_node_that_is_done_early_does_not_end_the_others(local: Local) -> None:
    local.submit("uneven", ["sh", "-c", "sleep $((NODE_RANK * 8)); echo end of $NODE_RANK"], numNodes=2)
    assert local.rest("uneven").status.phase == "Succeeded"  # type: ignore[union-attr]
    assert "[r1] end of 1" in local.log("uneven")
    local.nothing_left()
