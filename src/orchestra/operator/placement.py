"""Where the workers of an attempt stand with the scheduler, in its own words and numbers. Pure.

A gang scheduler's condition stays on the group while the gang runs, so nothing it says counts once the pods are
bound. "Waits for room" and "can never fit" come under one reason from KAI: the numbers in its message tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestra.api.job import TorchrunJob
from orchestra.operator import conditions, elastic
from orchestra.operator.kinds import GroupCondition, PodObject
from orchestra.plan import Plan, status

SCHEDULED = "Scheduled"
GANG = "GangScheduling"
PLACING = "Placing"
HALF = "HalfGang"
NEVER_FITS = "NeverFits"

_OVER_LIMIT = re.compile(r"Limit is ([0-9.]+).*?requested ([0-9.]+)", re.DOTALL)
_TYPED = re.compile(r"^([A-Z][A-Za-z]+): ")  # KAI writes its reason as the first word of the message


@dataclass(frozen=True)
class Placement:
    """How many workers have a node, and why the others have none."""

    bound: int
    needed: int
    """Fewest that can train."""
    reason: str
    message: str

    @property
    def whole(self) -> bool:
        """Whether enough of them have a node."""
        return self.bound >= self.needed

    @property
    def half(self) -> bool:
        """Whether it holds places that it cannot use."""
        return 0 < self.bound < self.needed


def placement(workers: Sequence[PodObject], plan: Plan, group: GroupCondition | None = None) -> Placement:
    """The state of one attempt. `group` is what a gang scheduler said about the whole."""
    bound = sum(1 for pod in workers if pod.spec.node_name)
    needed = min(plan.gang.min_member, plan.node_count)
    wanted = elastic.wanted(plan)
    if bound >= wanted:
        return Placement(bound, needed, "Bound", f"all {bound} workers have a node")
    reason, message = _why(workers, group)
    return Placement(bound, needed, reason, f"{bound} of {wanted} workers have a node{message}")


def _why(workers: Sequence[PodObject], group: GroupCondition | None) -> tuple[str, str]:
    told = [
        (condition.reason, condition.message)
        for pod in sorted(workers, key=lambda pod: pod.index)
        for condition in pod.status.conditions
        if not pod.spec.node_name and condition.type == "PodScheduled" and condition.status == "False"
    ]
    if not told and group is not None:
        told = [(group.reason, group.message)]
    if not told:
        return PLACING, ""
    reason, message = told[0]
    typed = _TYPED.match(message)
    if typed:
        reason = typed[1]
    numbers = _OVER_LIMIT.search(message)
    if numbers and float(numbers[2]) > float(numbers[1]):
        return NEVER_FITS, f"; it can never fit: {message}"
    return reason or "Unschedulable", f": {message}"


def told(job: TorchrunJob, plan: Plan, placed: Placement, now: float) -> TorchrunJob:
    """The job with the condition `Scheduled`."""
    if placed.whole:
        return conditions.with_condition(job, SCHEDULED, "True", placed.reason, placed.message, now)
    reason = HALF if placed.half and plan.gang.scheduler == "none" else placed.reason
    return conditions.with_condition(job, SCHEDULED, "False", reason, placed.message, now)


def starting(job: TorchrunJob, plan: Plan, now: float) -> TorchrunJob:
    """The job with what is known before the scheduler has spoken, and who (if anybody) places the whole gang."""
    job = conditions.with_condition(
        job, SCHEDULED, "False", PLACING, f"0 of {elastic.wanted(plan)} workers have a node", now
    )
    if plan.gang.min_member <= 1:
        return conditions.without_condition(job, GANG)
    if plan.gang.scheduler == "none":
        seconds = plan.lifecycle.gang_timeout_seconds
        message = (
            f"no gang scheduler places the {plan.node_count} workers at once: some may hold a node while others wait; "
            f"after {seconds} s they give it back. Set scheduling.gang: coscheduling or a kaiQueue on the queue"
        )
        return conditions.with_condition(job, GANG, "False", "NoGangScheduler", message, now)
    message = f"{plan.gang.scheduler} places all {plan.gang.min_member} workers or none"
    return conditions.with_condition(job, GANG, "True", "GangScheduler", message, now)


def waiting_since(job: TorchrunJob) -> float | None:
    """Since when the job has been without its nodes, over all attempts to get them, or in its phase."""
    said = status.phase_condition(job)
    began = status.seconds_of(said.last_transition_time) if said else None
    times = [time for time in (began, conditions.since(job, SCHEDULED, "False")) if time is not None]
    return min(times, default=None)
