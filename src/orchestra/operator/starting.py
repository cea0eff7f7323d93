"""What keeps an attempt from starting, or lets go of one that was only half placed. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from orchestra.api.job import Phase, RestartBudget, TorchrunJob
from orchestra.kube.objects import Metadata
from orchestra.operator import half_gangs, placement, quotas, refusals
from orchestra.operator.attempt import pod_children
from orchestra.operator.conditions import with_condition
from orchestra.operator.decision import CREATED, Decision, Observation, told
from orchestra.operator.kinds import PodObject
from orchestra.plan import Plan, status

_QUOTA_LOOK_AGAIN = 60.0  # more room is heard of at once; this is for what is not heard


def held_back(seen: Observation, job: TorchrunJob, plan: Plan, now: float) -> Decision | None:
    """Whatever keeps a new attempt from starting although its turn to be looked at has come."""
    pending = plan.lifecycle.pending_timeout_seconds
    since = placement.waiting_since(job)
    waited = pending is not None and since is not None and now >= since + pending
    if waited and status.status_of(job).phase == "Queued":
        said = status.phase_condition(job)
        text = f"not running after {pending} s: {said.message if said else ''}"
        return told(job, "Failed", "PendingTimeout", text, now, warning=True)
    if half_gangs.was_released(job):
        timeout = float(plan.lifecycle.gang_timeout_seconds or 0)
        wait = half_gangs.wait_for_turn(timeout, seen.seniority, seen.rivals, now)
        if wait is not None:
            return Decision(status.status_of(job), look_again=wait)
    short = quotas.shortage(seen.quotas, _pod_bodies(seen, plan)) if seen.quotas else None
    if short is not None:
        waiting = told(job, "Queued", quotas.EXCEEDED, short, now, warning=True)
        return replace(waiting, look_again=_QUOTA_LOOK_AGAIN)
    return None


def _pod_bodies(seen: Observation, plan: Plan) -> list[dict[str, Any]]:
    meta = Metadata(name=seen.job.metadata.name, namespace=seen.job.metadata.namespace or "", uid=seen.seniority.uid)
    return [quotas.plain(child.body) for child in pod_children(plan, meta, 1)]


def half_gang_seconds(
    seen: Observation,
    job: TorchrunJob,
    plan: Plan,
    placed: placement.Placement,
    workers: tuple[PodObject, ...],
    now: float,
) -> float | None:
    """How long a gang that holds only some of its places may keep them; None when it is no such gang."""
    if plan.gang.scheduler != "none" or not placed.half:
        return None
    since = half_gangs.half_since(workers, _began(job) or now)
    timeout = float(plan.lifecycle.gang_timeout_seconds or 0)
    return half_gangs.seconds_left(since, timeout, seen.seniority, seen.rivals, now)


def release(seen: Observation, job: TorchrunJob, plan: Plan, placed: placement.Placement, now: float) -> Decision:
    """Give all places back and wait again; that spends nothing."""
    current = status.status_of(job)
    timeout = plan.lifecycle.gang_timeout_seconds or 0
    pause = half_gangs.pause(timeout, seen.seniority.uid, current.attempt or 0)
    budget = msgspec.structs.replace(current.budget or RestartBudget(), not_before=status.timestamp(now + pause))
    job = status.with_status(job, budget=budget)
    text = f"gave its places back after {timeout} s and tries again in {pause:.0f} s: {placed.message}"
    here = tuple(pod for pod in seen.pods if not pod.leaving)
    return replace(told(job, "Queued", half_gangs.RELEASED, text, now, warning=True), delete=here, look_again=pause)


def refused(seen: Observation, reason: str, message: str, now: float) -> Decision:
    """The server did not take an attempt: nothing of it stays, and the job waits with the server's words.

    A name that is taken is the user's to mend, so that is no queue.
    """
    current = status.status_of(seen.job)
    job = status.with_status(seen.job, observed_generation=seen.generation)
    job = with_condition(job, CREATED, "False", reason, "nothing of this attempt was kept", now)
    phase: Phase = "Pending" if reason == refusals.NAME_TAKEN else "Queued"
    begun = current.phase == "Provisioning"  # its pods are going, and their end must not start the next try
    pause = refusals.pause(placement.waiting_since(seen.job) if begun or current.phase == phase else None, now)
    if begun:
        budget = msgspec.structs.replace(current.budget or RestartBudget(), not_before=status.timestamp(now + pause))
        job = status.with_status(job, budget=budget)
    return replace(told(job, phase, reason, message, now, warning=True), look_again=pause)


def _began(job: TorchrunJob) -> float | None:
    said = status.phase_condition(job)
    return status.seconds_of(said.last_transition_time) if said else None
