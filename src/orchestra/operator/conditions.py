"""Conditions of a job: said once, kept with the time since when they hold. Pure."""

from __future__ import annotations

from typing import Literal

from orchestra.api.job import TorchrunJob
from orchestra.api.kubernetes import Condition
from orchestra.plan import status


def with_condition(
    job: TorchrunJob, kind: str, value: Literal["True", "False"], reason: str, message: str, now: float
) -> TorchrunJob:
    """The job with one condition said; the time stays while its value does."""
    current = status.status_of(job)
    before = condition_of(job, kind)
    since = before.last_transition_time if before and before.status == value else status.timestamp(now)
    made = Condition(type=kind, status=value, reason=reason, message=message, last_transition_time=since)
    others = [c for c in current.conditions if c.type != kind]
    return status.with_status(job, conditions=sorted([made, *others], key=lambda c: c.type))


def without_condition(job: TorchrunJob, kind: str) -> TorchrunJob:
    """The job with nothing said about this any more."""
    kept = [c for c in status.status_of(job).conditions if c.type != kind]
    return status.with_status(job, conditions=kept)


def condition_of(job: TorchrunJob, kind: str) -> Condition | None:
    """What is said about this."""
    return next((c for c in status.status_of(job).conditions if c.type == kind), None)


def is_true(job: TorchrunJob, kind: str) -> bool:
    """Whether it is said to be so."""
    found = condition_of(job, kind)
    return found is not None and found.status == "True"


def since(job: TorchrunJob, kind: str, value: Literal["True", "False"]) -> float | None:
    """Since when it has been said to be so; None when it is not."""
    found = condition_of(job, kind)
    return status.seconds_of(found.last_transition_time) if found is not None and found.status == value else None
