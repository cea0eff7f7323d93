"""What could not be fetched fails the job, in the words of who tried; what could not be sent is told and stays told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from orchestra.operator.kinds import PodObject
from orchestra.operator.verdicts import outcome_of_pods, unsent
from orchestra.plan.restart import HOPELESS


def pod(phase: str, trainer: dict[str, Any] | None, index: int = 0, **beside: dict[str, Any]) -> PodObject:
    labels = {"torchrun.ai/role": "worker", "torchrun.ai/node": str(index), "torchrun.ai/attempt": "1"}
    ended = {"terminated": trainer} if trainer else {"waiting": {"reason": "PodInitializing"}}
    init = [{"name": f"orchestra-{name}", "state": {"terminated": end}} for name, end in beside.items()]
    body = {
        "metadata": {"name": f"train-{index}", "namespace": "n", "labels": labels},
        "status": {"phase": phase, "containerStatuses": [{"name": "trainer", "state": ended}],
                   "initContainerStatuses": init},
    }  # fmt: skip
    return msgspec.convert(body, PodObject)


@pytest.mark.parametrize(("code", "reason"), [(3, "SyncRefused"), (1, "Sync")])
def test_a_failed_fetch_is_the_jobs_failure_and_not_a_lost_node(code: int, reason: str) -> None:
    said = "data: 3 of 9 files\nerror: cannot list at s3://b/data: there is no such bucket\n"
    outcome = outcome_of_pods((pod("Failed", None, fetch={"exitCode": code, "message": said}),), 1, 0, 0)
    assert not isinstance(outcome, (float, type(None)))
    assert outcome.state == "failed"
    assert outcome.failure is not None
    assert outcome.failure.reason == reason
    assert outcome.failure.message == "train-0: cannot list at s3://b/data: there is no such bucket"
    assert (reason in HOPELESS) == (code == 3)


def test_a_fetch_that_was_killed_from_outside_is_free() -> None:
    outcome = outcome_of_pods((pod("Failed", None, fetch={"exitCode": 137}),), 1, 0, 0)
    assert not isinstance(outcome, (float, type(None)))
    assert outcome.state == "lost"


def test_a_failed_last_upload_is_told() -> None:
    done = {"exitCode": 0}
    bad = pod("Succeeded", done, 1, fetch=done, send={"exitCode": 1, "message": "error: not everything is in s3://b"})
    assert unsent((pod("Succeeded", done, fetch=done, send=done), bad)) == "train-1: not everything is in s3://b"
    assert unsent((pod("Succeeded", done, fetch=done, send=done),)) is None
