"""Keeping half-placed gangs from blocking each other, where no scheduler places gangs as a whole. Pure.

Two jobs of two workers on two nodes can each get one node and wait for the other for ever. So a gang that holds some
places and not enough of them gives all of them back after `gangTimeoutSeconds`, and tries again after a jittered pause.
The oldest goes first: it may hold on twice as long while a younger one is about to give way, and a younger one that
gave way stays back while an older one is trying. A gang without any place holds nothing up, and keeps its pods: the
scheduler (or an autoscaler) finds room for them sooner than we would.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestra.api.job import TorchrunJob, TorchrunJobStatus
from orchestra.operator.kinds import PodObject
from orchestra.operator.placement import HALF, PLACING, SCHEDULED
from orchestra.plan import status

RELEASED = "GangReleased"
_LOOK_AGAIN = 2.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.45  # of the timeout


@dataclass(frozen=True, order=True)
class Seniority:
    """Older jobs come first; of two of one second, the one whose UID is smaller."""

    born: str
    uid: str


@dataclass(frozen=True)
class Rival:
    """Another job that has given its places back, or holds half of what it needs."""

    seniority: Seniority
    state: Literal["waiting", "placing", "half"]
    time: float
    """When it may start again, or when it began to be placed."""


def rival(seniority: Seniority, other: TorchrunJobStatus) -> Rival | None:
    """What another job's status says about that; None when it is no rival."""
    phase = next((c for c in other.conditions if c.type == "Phase"), None)
    placed = next((c for c in other.conditions if c.type == SCHEDULED), None)
    if phase is None:
        return None
    began = status.seconds_of(phase.last_transition_time) or 0.0
    if other.phase == "Queued" and phase.reason == RELEASED:
        due = status.seconds_of(other.budget.not_before) if other.budget else None
        return Rival(seniority, "waiting", due if due is not None else began)
    if other.phase == "Provisioning" and placed is not None and placed.status == "False":
        if placed.reason == HALF:
            return Rival(seniority, "half", began)
        if placed.reason == PLACING:
            return Rival(seniority, "placing", began)
    return None


def looks_for_rivals(raw_status: bytes) -> bool:
    """Whether a job with this status has to know of others: it holds half of its places, or has given them back."""
    return RELEASED.encode() in raw_status or HALF.encode() in raw_status


def may_be_rival(raw_status: bytes) -> bool:
    """A quick look before decoding: most jobs are none."""
    return looks_for_rivals(raw_status) or PLACING.encode() in raw_status


def half_since(workers: Sequence[PodObject], began: float) -> float:
    """When the first of the workers got its node."""
    times = [
        bound
        for pod in workers
        for condition in pod.status.conditions
        if condition.type == "PodScheduled" and condition.status == "True"
        if (bound := status.seconds_of(condition.last_transition_time)) is not None
    ]
    return min(times, default=began)


def seconds_left(since: float, timeout: float, me: Seniority, rivals: Iterable[Rival], now: float) -> float:
    """How long a half gang may still hold on; not above zero: it gives its places back."""
    younger = any(one.state == "half" and one.seniority > me for one in rivals)
    return since + timeout * (2 if younger else 1) - now


def pause(timeout: float, uid: str, attempt: int) -> float:
    """Before the next try: different for each job and try, the same whenever it is asked."""
    share = zlib.crc32(f"{uid}/{attempt}".encode()) / 2**32
    return max(1.0, timeout * (_SHORTEST_PAUSE + share * (_LONGEST_PAUSE - _SHORTEST_PAUSE)))


def was_released(job: TorchrunJob) -> bool:
    """Whether the job has given its places back and waits for its turn."""
    said = status.phase_condition(job)
    return said is not None and said.reason == RELEASED


def wait_for_turn(timeout: float, me: Seniority, rivals: Iterable[Rival], now: float) -> float | None:
    """Seconds until a job that gave way should look again; None when it is its turn.

    Each older one is waited for as long as one try of it may take, so that one that can never be placed as a whole
    does not keep the others back for ever.
    """
    for one in rivals:
        if one.seniority > me:
            continue
        trying = one.state != "waiting" and now < one.time + timeout
        about_to = one.state == "waiting" and one.time <= now < one.time + timeout
        if trying or about_to:
            return _LOOK_AGAIN
    return None
