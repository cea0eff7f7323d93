"""What ends by the clock: the active deadline and the time to live. Pure."""

from __future__ import annotations

from orchestra.api.job import TorchrunJobStatus
from orchestra.operator.decision import Decision, Observation
from orchestra.plan import status

_AT_LEAST = 1.0  # what could not be done when its time had come is tried again without haste


def due(seen: Observation, made: Decision, now: float) -> float | None:
    """Seconds until a clock of the status that is decided on runs out. It may have begun with this very decision, and
    nothing else would have the job looked at again: our own writes wake nobody.
    """
    left = None
    if made.status.phase in status.FINISHED and not made.delete_job:
        left = _left(made.status.completion_time, time_to_live(seen), now)
    elif made.status.phase in ("Provisioning", "Running"):
        left = _left(made.status.start_time, _deadline(seen), now)
    return max(left, _AT_LEAST) if left is not None else None


def past_deadline(seen: Observation, current: TorchrunJobStatus, now: float) -> str | None:
    """In words, if it is."""
    left = _left(current.start_time, _deadline(seen), now)
    return f"it was active for more than {_deadline(seen)} s" if left is not None and left <= 0 else None


def time_to_live(seen: Observation) -> int | None:
    """Seconds that a finished job stays. Its own word holds though its queue is gone."""
    if seen.plan is not None:
        return seen.plan.lifecycle.ttl_seconds_after_finished
    spec = seen.job.spec
    lifecycle = spec.lifecycle.ttl_seconds_after_finished if spec.lifecycle is not None else None
    return spec.ttl_seconds_after_finished if spec.ttl_seconds_after_finished is not None else lifecycle


def _deadline(seen: Observation) -> int | None:
    return seen.plan.lifecycle.active_deadline_seconds if seen.plan is not None else None


def _left(began: str | None, limit: int | None, now: float) -> float | None:
    since = status.seconds_of(began)
    return since + limit - now if since is not None and limit is not None else None
