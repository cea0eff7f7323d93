"""A job's status and how it moves: small pure steps from one status to the next."""

from __future__ import annotations

import datetime
import math
from typing import Any

import msgspec

from orchestra.api.base import from_builtins
from orchestra.api.job import Failure, Phase, Progress, TorchrunJob, TorchrunJobStatus, Workers
from orchestra.api.kubernetes import Condition
from orchestra.plan.model import Plan

FINISHED: frozenset[str] = frozenset({"Succeeded", "Failed"})
RESTING: frozenset[str] = FINISHED | {"Suspended"}


def timestamp(seconds: float) -> str:
    """As Kubernetes writes it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(stamp: str | None) -> float | None:
    """The other way."""
    if stamp is None:
        return None
    return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def status_of(job: TorchrunJob) -> TorchrunJobStatus:
    """The status, never None."""
    return job.status or TorchrunJobStatus()


def with_status(job: TorchrunJob, **changes: Any) -> TorchrunJob:
    """The job with some fields of its status changed."""
    return msgspec.structs.replace(job, status=msgspec.structs.replace(status_of(job), **changes))


def in_phase(job: TorchrunJob, phase: Phase, reason: str, message: str, now: float) -> TorchrunJob:
    """The job in another phase, with the condition that says why and since when."""
    status = status_of(job)
    before = next((c for c in status.conditions if c.type == "Phase"), None)
    same = before is not None and status.phase == phase
    condition = Condition(
        type="Phase",
        status="True",
        reason=reason,
        message=message,
        last_transition_time=before.last_transition_time if same and before else timestamp(now),
    )
    others = [c for c in status.conditions if c.type != "Phase"]
    changes: dict[str, Any] = {"phase": phase, "conditions": [condition, *others]}
    if phase == "Running" and status.start_time is None:
        changes["start_time"] = timestamp(now)
    if phase in FINISHED:
        changes["completion_time"] = timestamp(now)
    if phase in RESTING or phase in ("Queued", "Pending"):
        desired = status.workers.desired if status.workers else 0
        changes["workers"] = Workers(desired=desired, succeeded=desired if phase == "Succeeded" else 0)
    return with_status(job, **changes)


def phase_condition(job: TorchrunJob) -> Condition | None:
    """Why the job is in its phase."""
    return next((c for c in status_of(job).conditions if c.type == "Phase"), None)


def at_rest(job: TorchrunJob) -> bool:
    """Whether it is suspended or finished, and nobody has asked for anything since (it was resumed a moment ago)."""
    current, asked = status_of(job), job.metadata.generation
    unheard = current.observed_generation is not None and asked is not None and current.observed_generation < asked
    return current.phase in FINISHED or (current.phase == "Suspended" and not unheard)


def sized(job: TorchrunJob, plan: Plan) -> TorchrunJob:
    """The job with the size of its plan."""
    return with_status(
        job,
        nodes=plan.node_count,
        procs_per_node=plan.procs_per_node,
        gpus=plan.node_count * plan.gpus_per_node,
        workers=Workers(desired=plan.node_count),
    )


def with_progress(job: TorchrunJob, progress: Progress) -> TorchrunJob:
    """The job with what its ranks last reported; what they left out stays as it was."""
    before = status_of(job).progress or Progress()
    news = {name: value for name, value in msgspec.structs.asdict(progress).items() if value is not None}
    merged = msgspec.structs.replace(before, **news)
    return with_status(job, progress=merged, progress_text=progress_text(merged))


_WHOLE = ("step", "totalSteps", "etaSeconds", "checkpointStep")
_NUMBERS = (*_WHOLE, "epoch", "loss", "tokensPerSecond", "goodput")


def progress_from(reported: dict[str, Any]) -> Progress:
    """What a rank wrote, as the API has it: a user's own script may write anything, so only finite numbers count."""
    known: dict[str, float] = {}
    for name in _NUMBERS:
        value = reported.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            known[name] = max(0, round(value)) if name in _WHOLE else float(value)
    return from_builtins(known, Progress)


def progress_text(progress: Progress) -> str | None:
    """In a few characters, for lists: `120/500 24%`."""
    if progress.step is None:
        return None
    if not progress.total_steps:
        return str(progress.step)
    return f"{progress.step}/{progress.total_steps} {100 * progress.step // progress.total_steps}%"


def failed(job: TorchrunJob, failure: Failure | None) -> TorchrunJob:
    """The job with what went wrong."""
    return with_status(job, failure=failure)
