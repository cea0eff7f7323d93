"""What every engine promises, as tests. An engine's own test class inherits them and gives the `site`.

The jobs are scripts without torch, so that the whole suite takes seconds on an engine that is quick to start.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import pytest

from orchestra.api import Invalid
from orchestra.api.engine import Engine, EngineError, LogQuery, NotFound
from orchestra.api.job import TorchrunJob


class Site(Protocol):
    """An engine with what these tests need around it."""

    @property
    def engine(self) -> Engine:
        """The engine, with a fresh look at the world."""

    def cooperative(self, name: str, *words: object, **spec: Any) -> TorchrunJob:
        """Submits the cooperative script: STEPS SECONDS [FAULT]."""

    def cooperative_command(self, *words: object) -> list[str]:
        """The command that `cooperative` submits."""

    def submit(self, name: str, command: Any, **spec: Any) -> TorchrunJob:
        """Submits any command on a CPU queue."""

    def rest(self, name: str) -> TorchrunJob:
        """The job once it is at rest."""

    def step(self, name: str, at_least: int) -> TorchrunJob:
        """The job once it has reported a step."""

    def log(self, name: str) -> str:
        """All lines of the job."""

    def saved_step(self, name: str) -> int:
        """The step in the job's newest checkpoint."""

    def nothing_left(self) -> None:
        """Fails when anything of a job still runs."""


def reason_of(job: TorchrunJob) -> str:
    """Why the job is in its phase, in a word."""
    conditions = job.status.conditions if job.status else []
    return next((condition.reason for condition in conditions if condition.type == "Phase"), "")


class EngineContract:
    """Inherit, and give a fixture `site`."""

    def test_a_job_runs_to_its_end_and_tells_where_it_stands(self, site: Site) -> None:
        site.cooperative("good", 5, 0.05)
        job = site.rest("good")
        assert job.status is not None
        assert (job.status.phase, job.status.attempt, job.status.restarts) == ("Succeeded", 1, 0)
        assert job.status.progress is not None
        assert (job.status.progress.step, job.status.progress_text) == (5, "5/5 100%")
        assert site.saved_step("good") == 5
        assert [event.reason for event in site.engine.events("good")][:2] == ["Submitted", "Starting"]
        site.nothing_left()

    def test_suspend_saves_and_resume_goes_on_from_there(self, site: Site) -> None:
        site.cooperative("long", 2000, 0.05)  # longer than anybody takes to see step 3
        site.step("long", 3)
        site.engine.suspend("long")
        job = site.rest("long")
        assert job.status is not None
        assert (job.status.phase, reason_of(job)) == ("Suspended", "Suspended")
        site.nothing_left()
        saved = site.saved_step("long")
        assert saved >= 3
        site.engine.resume("long", {"command": site.cooperative_command(400, 0.01)})
        job = site.rest("long")
        assert job.status is not None
        assert (job.status.phase, job.status.attempt) == ("Succeeded", 2)
        assert f"begin at {saved}" in site.log("long")

    def test_a_failure_is_restarted_and_the_budget_ends(self, site: Site) -> None:
        site.cooperative("once", 5, 0.01, "--exit-at", 3, 7)
        job = site.rest("once")
        assert job.status is not None
        assert (job.status.phase, job.status.attempt, job.status.restarts) == ("Succeeded", 2, 1)
        site.submit("always", [sys.executable, "-c", "import sys; sys.exit(3)"], launcher="none", maxRestarts=1)
        job = site.rest("always")
        assert job.status is not None
        assert job.status.failure is not None
        assert (job.status.phase, job.status.failure.exit_code, job.status.failure.rank) == ("Failed", 3, 0)
        assert job.status.attempt == 2
        site.nothing_left()

    def test_a_deadline_stops_gracefully_and_fails(self, site: Site) -> None:
        site.cooperative("late", 1000, 0.05, activeDeadlineSeconds=1)
        job = site.rest("late")
        assert job.status is not None
        assert (job.status.phase, reason_of(job)) == ("Failed", "DeadlineExceeded")
        assert "stopped at" in site.log("late")
        site.nothing_left()

    def test_names_jobs_and_mistakes(self, site: Site) -> None:
        site.cooperative("twin", 1000, 0.05)
        with pytest.raises(EngineError, match="delete or cancel it first"):
            site.cooperative("twin", 1, 0.01)
        with pytest.raises(NotFound, match="did you mean twin"):
            site.engine.get("twinn")
        with pytest.raises(EngineError, match="nothing to resume"):
            site.engine.resume("twin", {})
        site.engine.cancel("twin")
        site.rest("twin")
        with pytest.raises(EngineError, match="already"):
            site.engine.suspend("twin")
        site.cooperative("twin", 1, 0.01)  # a finished one makes room
        assert site.rest("twin").status.phase == "Succeeded"  # type: ignore[union-attr]
        assert len(site.engine.history()) == 2

    def test_a_resumed_job_takes_only_changes_that_may_be_made(self, site: Site) -> None:
        site.cooperative("sized", 1000, 0.05, suspend=True)
        assert site.engine.get("sized").status.phase == "Suspended"  # type: ignore[union-attr]
        with pytest.raises(Invalid, match="cannot change"):
            site.engine.resume("sized", {"jobQueue": "other"})
        with pytest.raises(Invalid):
            site.engine.resume("sized", {"numNodes": 0})
        site.engine.resume("sized", {"numNodes": 2})
        assert site.step("sized", 1).status.nodes == 2  # type: ignore[union-attr]
        site.engine.delete("sized")
        site.nothing_left()

    def test_logs_are_followed_across_attempts_until_the_end(self, site: Site) -> None:
        site.cooperative("chatty", 5, 0.05, "--crash-at", 3)
        lines = [line.text for line in site.engine.logs("chatty", LogQuery(follow=True))]
        assert "RuntimeError: made to fail" in lines
        assert lines.index("RuntimeError: made to fail") < lines.index("done")
