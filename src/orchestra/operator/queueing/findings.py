"""What was found out about a queue, and the status that says so. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestra.api.problem import Problem
from orchestra.operator.kinds import JobObject
from orchestra.operator.queueing.line import name_some
from orchestra.operator.queueing.lookup import StatusSeen, status_seen
from orchestra.plan.status import timestamp

Json = dict[str, Any]

POLITE = 5
"""So many jobs are named; a shared queue's users need not read a thousand names of others."""
_LONGEST = 8000
_MOST = 1_000_000
_USING = ("Provisioning", "Running")


@dataclass(frozen=True)
class Finding:
    """One condition of a queue."""

    type: str
    good: bool
    reason: str
    message: str


@dataclass(frozen=True)
class Census:
    """The jobs of a queue."""

    pending: int = 0
    running: int = 0
    gpus: int = 0
    unfinished: tuple[str, ...] = ()
    """Names, with the namespace where it is another than the queue's."""


def census(namespace: str, jobs: Iterable[JobObject]) -> Census:
    """Count them. A suspended job neither runs nor waits, but it is not finished."""
    pending = running = gpus = 0
    unfinished = []
    for job in jobs:
        seen = status_seen(job)
        if seen.finished:
            continue
        meta = job.metadata
        unfinished.append(meta.name if meta.namespace == namespace else f"{meta.namespace}/{meta.name}")
        running += seen.phase == "Running"
        pending += seen.phase not in ("Running", "Suspended")
        gpus += (seen.gpus or 0) if seen.phase in _USING else 0
    return Census(pending, running, gpus, tuple(sorted(unfinished)))


def counted(seen: StatusSeen) -> tuple[object, ...]:
    """What of a job's status a census reads."""
    return seen.phase, seen.gpus


def of_problems(kind: str, reason: str, fine: str, problems: Sequence[Problem]) -> Finding:
    """A condition that is true where there are no problems, and names them all where there are."""
    if not problems:
        return Finding(kind, True, fine, "nothing is wrong")
    return Finding(kind, False, reason, "; ".join(str(problem) for problem in problems))


def in_use(found: Census) -> Finding:
    """Why a queue is not deleted yet."""
    jobs = len(found.unfinished)
    what = "1 unfinished job uses" if jobs == 1 else f"{jobs} unfinished jobs use"
    names = name_some(found.unfinished, POLITE)
    message = f"{what} this queue: {names}; it goes when they have ended or are deleted"
    return Finding("DeletionBlocked", True, "JobsUseIt", message)


def status_json(
    before: Json, findings: Sequence[Finding], found: Census, *, quota: int, kai: str | None, generation: int,
    deleting: bool, now: float,
) -> Json:  # fmt: skip
    """The whole status. What did not change keeps its time, so that an unchanged status is equal to the one before."""
    bad = [one for one in findings if not one.good]
    first = bad[0] if bad else None
    ready = Finding(
        "Ready", first is None, first.reason if first else "Ready", first.message if first else "jobs can run"
    )
    known = {one.get("type"): one for one in before.get("conditions", []) if isinstance(one, dict)}
    conditions = [_condition(one, known.get(one.type, {}), generation, now) for one in (*findings, ready)]
    status: Json = {
        "phase": _phase(findings, deleting=deleting),
        "conditions": sorted(conditions, key=lambda one: one["type"]),
        "jobs": {"pending": min(found.pending, _MOST), "running": min(found.running, _MOST)},
        "gpus": {"used": min(found.gpus, _MOST), "quota": quota},
        "observedGeneration": generation,
    }
    return status | ({"kaiQueue": kai} if kai else {})


def _phase(findings: Sequence[Finding], *, deleting: bool) -> Literal["Ready", "Degraded", "Invalid", "Deleting"]:
    if deleting:
        return "Deleting"
    if any(one.type == "Valid" and not one.good for one in findings):
        return "Invalid"
    return "Degraded" if any(not one.good for one in findings) else "Ready"


def _condition(one: Finding, before: Json, generation: int, now: float) -> Json:
    value = "True" if one.good else "False"
    since = before.get("lastTransitionTime") if before.get("status") == value else None
    message = one.message if len(one.message) <= _LONGEST else f"{one.message[:_LONGEST]} ..."
    return {
        "type": one.type,
        "status": value,
        "reason": one.reason,
        "message": message,
        "lastTransitionTime": since or timestamp(now),
        "observedGeneration": generation,
    }


def only_counts_differ(before: Json, after: Json) -> bool:
    """Whether two statuses say the same about the queue, and differ in numbers at most."""
    return {**before, "jobs": None, "gpus": None} == {**after, "jobs": None, "gpus": None}
