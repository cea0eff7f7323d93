"""How soon a status must be written: news at once, mere counting together with what comes next. Pure.

A status write costs the API server as much as creating two pods, and while a job starts each of its pods changes
several times. What others act on, or what the operator itself must know after a crash, never waits.
"""

from __future__ import annotations

import msgspec

from orchestra.api.job import TorchrunJobStatus, Workers
from orchestra.operator.decision import CREATED, Decision, Observation
from orchestra.plan import status

SETTLE = 2.0
"""Seconds from one write to the next that only counts."""


def can_wait(seen: Observation, decision: Decision) -> bool:
    """Whether nothing is lost when this decision's status is written a moment later, or with the next one."""
    acts = decision.create or decision.fill or decision.replace or decision.delete or decision.stop or decision.events
    if acts or decision.delete_job:
        return False
    # That all were created must be known before one of them can have begun to run: else, deleted, it would be taken
    # for one that is still to be created, and live twice.
    placed = any(pod.spec.node_name for pod in seen.pods)
    before, after = status.status_of(seen.job), decision.status
    return _essence(before, placed=placed) == _essence(after, placed=placed)


def _essence(told: TorchrunJobStatus, *, placed: bool) -> tuple[TorchrunJobStatus, object]:
    """A status without its counts and sentences."""
    values = {one.type: one.status for one in told.conditions if placed or one.type != CREATED}
    workers = told.workers or Workers()
    kept = Workers(desired=workers.desired, created=workers.created)
    return msgspec.structs.replace(told, conditions=[], workers=kept, progress=None, progress_text=None), values
