"""Restart policy and outcomes: what follows when an attempt has ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.api.job import Failure
from orchestra.api.template import Lifecycle
from orchestra.plan.outcome import AgentResult, Outcome, RankFailure, outcome_of
from orchestra.plan.restart import Budget, GiveUp, Retry, after, restarts_left

POLICY = Lifecycle(restart_policy="OnFailure", max_restarts=3)


def failed(reason: str = "ExitCode", restarts: int = 0) -> Outcome:
    return Outcome("failed", restarts, failure=Failure(reason=reason, message="m"))


def test_failures_spend_the_budget_and_then_the_job_fails() -> None:
    budget = Budget()
    for spent in (1, 2, 3):
        verdict = after(failed(), POLICY, budget, new_checkpoint=False)
        assert isinstance(verdict, Retry)
        assert verdict.budget.spent == spent
        budget = verdict.budget
    assert isinstance(after(failed(), POLICY, budget, new_checkpoint=False), GiveUp)


def test_restarts_in_place_spend_the_same_budget() -> None:
    assert isinstance(after(failed(restarts=3), POLICY, Budget(), new_checkpoint=False), GiveUp)
    verdict = after(failed(restarts=2), POLICY, Budget(), new_checkpoint=False)
    assert isinstance(verdict, Retry)
    assert restarts_left(POLICY, verdict.budget) == 0


def test_a_newer_checkpoint_refills_the_budget() -> None:
    verdict = after(failed(restarts=3), POLICY, Budget(spent=3), new_checkpoint=True)
    assert isinstance(verdict, Retry)
    assert verdict.budget.spent == 1


@given(st.integers(0, 40))
def test_what_is_not_the_jobs_fault_is_free_and_paced(times: int) -> None:
    lost = Outcome("lost", failure=Failure(reason="NodeLost", message="m"))
    verdict = after(lost, POLICY, Budget(spent=3, free_retries=times), new_checkpoint=False)
    assert isinstance(verdict, Retry)
    assert verdict.budget.spent == 3
    assert 1 <= verdict.pause <= 300


@pytest.mark.parametrize("reason", ["SyntaxError", "FileNotFound", "ImportError", "LauncherMissing"])
def test_what_another_try_cannot_mend_is_not_tried_again(reason: str) -> None:
    assert isinstance(after(failed(reason), POLICY, Budget(), new_checkpoint=False), GiveUp)


def test_never_means_never() -> None:
    never = Lifecycle(restart_policy="Never", max_restarts=3)
    assert restarts_left(never, Budget()) == 0
    assert isinstance(after(failed(), never, Budget(), new_checkpoint=True), GiveUp)


# ---- outcomes


def test_the_first_failure_by_time_is_the_culprit() -> None:
    def result(rank: int, when: float) -> AgentResult:
        return AgentResult(
            state="failed", failure=RankFailure(rank=rank, reason="Exception", message="boom", time=when)
        )

    outcome = outcome_of({0: result(0, 20.0), 1: result(3, 10.0)})
    assert outcome.failure is not None
    assert (outcome.state, outcome.failure.rank, outcome.failure.pod) == ("failed", 3, "1")


@pytest.mark.parametrize(
    ("states", "verdict"),
    [
        (["done", "done"], "done"), (["done", None], "lost"), (["stopped", "stopped"], "stopped"), (["done", "stopped"], "stopped"),
        (["failed", None], "failed"), (["hang", "stopped"], "hang"), ([None], "lost"),
    ],
)  # fmt: skip
def test_all_nodes_make_one_verdict(states: list[str | None], verdict: str) -> None:
    results = {i: AgentResult(state=state) if state else None for i, state in enumerate(states)}  # type: ignore[arg-type]
    assert outcome_of(results).state == verdict


def test_a_rank_is_blamed_before_a_launcher_that_fell_with_it() -> None:
    launcher = AgentResult(state="failed", failure=RankFailure(reason="Launcher", message="peer lost", time=1.0))
    rank = AgentResult(state="failed", failure=RankFailure(rank=2, reason="Exception", message="boom", time=2.0))
    outcome = outcome_of({0: launcher, 1: rank})
    assert outcome.failure is not None
    assert outcome.failure.rank == 2


def test_who_only_fell_with_a_lost_node_is_not_to_blame() -> None:
    fell = AgentResult(
        state="failed",
        failure=RankFailure(rank=0, reason="Exception", message="closed by peer", time=1.0, peer_lost=True),
    )
    assert outcome_of({0: fell, 1: None}).state == "lost", "free: the node is gone"
    assert outcome_of({0: fell, 1: AgentResult(state="stopped")}).state == "failed", "nobody else is to be had"
    guilty = AgentResult(state="failed", failure=RankFailure(rank=1, reason="Exception", message="boom", time=2.0))
    outcome = outcome_of({0: fell, 1: guilty, 2: None})
    assert outcome.failure is not None
    assert (outcome.state, outcome.failure.rank) == ("failed", 1)
