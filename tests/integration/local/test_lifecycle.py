"""The whole life of a job on this machine, with a script that needs no torch."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from local_engine import Local
from orchestra.api import Invalid
from orchestra.api.engine import EngineError, LogQuery, NotFound
from orchestra.local.status import phase_condition


def reason_of(job: object) -> str:
    said = phase_condition(job)  # type: ignore[arg-type]
    return said.reason if said else ""


def test_a_job_runs_to_its_end_and_tells_where_it_stands(local: Local) -> None:
    local.cooperative("good", 5, 0.05)
    job = local.rest("good")
    assert job.status is not None
    assert (job.status.phase, job.status.attempt, job.status.restarts) == ("Succeeded", 1, 0)
    assert job.status.progress is not None
    assert (job.status.progress.step, job.status.progress_text) == (5, "5/5 100%")
    assert (local.engine.output("good") / "step.json").read_text() == '{"step": 5}'
    assert [event.reason for event in local.engine.events("good")][:2] == ["Submitted", "Starting"]
    local.nothing_left()


def test_suspend_saves_and_resume_goes_on_from_there(local: Local) -> None:
    local.cooperative("long", 200, 0.05)
    local.step("long", 3)
    local.engine.suspend("long")
    job = local.rest("long")
    assert job.status is not None
    assert (job.status.phase, reason_of(job)) == ("Suspended", "Suspended")
    local.nothing_left()
    saved = int((local.engine.output("long") / "step.json").read_text().split(":")[1].strip(" }"))
    assert saved >= 3
    local.engine.resume(
        "long", {"command": [sys.executable, str(Path(__file__).with_name("cooperative.py")), "20", "0.01"]}
    )
    job = local.rest("long")
    assert job.status is not None
    assert (job.status.phase, job.status.attempt) == ("Succeeded", 2)
    assert f"begin at {saved}" in local.log("long")


def test_a_failure_is_restarted_and_the_budget_ends(local: Local) -> None:
    local.cooperative("once", 5, 0.01, "--exit-at", 3, 7)
    job = local.rest("once")
    assert job.status is not None
    assert (job.status.phase, job.status.attempt, job.status.restarts) == ("Succeeded", 2, 1)
    local.submit("always", [sys.executable, "-c", "import sys; sys.exit(3)"], launcher="none", maxRestarts=1)
    job = local.rest("always")
    assert job.status is not None
    assert job.status.failure is not None
    assert (job.status.phase, job.status.failure.exit_code, job.status.failure.rank) == ("Failed", 3, 0)
    assert job.status.attempt == 2
    local.nothing_left()


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


def test_a_deadline_stops_gracefully_and_fails(local: Local) -> None:
    local.cooperative("late", 1000, 0.05, activeDeadlineSeconds=1)
    job = local.rest("late")
    assert job.status is not None
    assert (job.status.phase, reason_of(job)) == ("Failed", "DeadlineExceeded")
    assert "stopped at" in local.log("late")
    local.nothing_left()


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


def test_names_jobs_and_mistakes(local: Local) -> None:
    local.cooperative("twin", 1000, 0.05)
    with pytest.raises(EngineError, match="delete or cancel it first"):
        local.cooperative("twin", 1, 0.01)
    with pytest.raises(NotFound, match="did you mean twin"):
        local.engine.get("twinn")
    with pytest.raises(EngineError, match="nothing to resume"):
        local.engine.resume("twin", {})
    local.engine.cancel("twin")
    local.rest("twin")
    with pytest.raises(EngineError, match="already"):
        local.engine.suspend("twin")
    local.cooperative("twin", 1, 0.01)  # a finished one makes room
    assert local.rest("twin").status.phase == "Succeeded"  # type: ignore[union-attr]
    assert len(local.engine.history()) == 2
    with pytest.raises(Invalid, match="needs 16 GPUs"):
        local.submit("gpus", "python x.py", overrides={"nodeResources": {"gpus": 8}}, numGPUs=16)
    with pytest.raises(NotFound):
        local.engine.get("gpus")


def test_a_resumed_job_takes_only_changes_that_may_be_made(local: Local) -> None:
    local.cooperative("sized", 1000, 0.05, suspend=True)
    assert local.engine.get("sized").status.phase == "Suspended"  # type: ignore[union-attr]
    with pytest.raises(Invalid, match="cannot change"):
        local.engine.resume("sized", {"jobQueue": "other"})
    with pytest.raises(Invalid):
        local.engine.resume("sized", {"numNodes": 0})
    local.engine.resume("sized", {"numNodes": 2})
    assert local.step("sized", 1).status.nodes == 2  # type: ignore[union-attr]
    local.engine.delete("sized")
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


def test_a_finished_job_is_forgotten_when_its_time_is_over(local: Local) -> None:
    local.cooperative("brief", 1, 0.01, ttlSecondsAfterFinished=1)
    local.rest("brief")
    end = time.monotonic() + 20
    while time.monotonic() < end and local.engine.jobs():
        time.sleep(0.1)
    assert not local.engine.jobs()
    assert len(local.engine.history()) == 1


def test_logs_are_followed_across_attempts_until_the_end(local: Local) -> None:
    local.cooperative("chatty", 5, 0.05, "--crash-at", 3)
    lines = [line.text for line in local.engine.logs("chatty", LogQuery(follow=True))]
    assert "RuntimeError: made to fail" in lines
    assert lines.index("RuntimeError: made to fail") < lines.index("done")


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
    assert {"[r0] 0 of 2", "[r1] 1 of 2", f"[r0] {tmp_path}"} <= set(local.log("shell").splitlines())
    local.nothing_left()
