"""Why a job on a cluster is where it is: ordered causes, from what was observed; never a guess. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestra.api.engine import Cause
from orchestra.api.job import TorchrunJob
from orchestra.api.queue import TorchrunQueue
from orchestra.api.spelling import nearest
from orchestra.cluster import why_pods
from orchestra.cluster.kinds import Claim, ClusterEvent, Node, Pod
from orchestra.plan import status
from orchestra.plan.queues import SHARED_NAMESPACE

_ORDER = ("queue", "gang", "nodes", "volumes", "image", "container", "rank", "job")
_UNHEARD_SECONDS = 10.0

# Reasons that the operator gives; a test compares them with its own.
QUEUE_LIMIT, NEVER_FITS = "QueueLimit", "NeverFits"
QUOTA_EXCEEDED, GANG_RELEASED, HALF_GANG = "QuotaExceeded", "GangReleased", "HalfGang"


@dataclass(frozen=True)
class Observed:
    """What was seen of a job and of all that it may wait for, at one moment. None: we may not look."""

    job: TorchrunJob
    namespace: str
    now: float
    queues: tuple[TorchrunQueue, ...] = ()
    """Those that the job could name."""
    others: tuple[TorchrunJob, ...] = ()
    """The other jobs of its namespace."""
    pods: tuple[Pod, ...] = ()
    """Its workers of the current attempt."""
    claims: tuple[Claim, ...] = ()
    events: tuple[ClusterEvent, ...] = ()
    """Warnings about the job, its pods and its claims."""
    nodes: tuple[Node, ...] | None = None
    placed: tuple[Pod, ...] | None = None
    """Every pod of the cluster that holds a part of a node."""


def causes(seen: Observed) -> list[Cause]:
    """The reasons, most important first."""
    found = [*_queue_unwell(seen), *_causes(seen)]
    return sorted(found, key=lambda cause: _ORDER.index(cause.about))


def _causes(seen: Observed) -> list[Cause]:
    job = seen.job
    name, current, said = job.metadata.name, status.status_of(job), status.phase_condition(job)
    message = said.message if said else ""
    match current.phase:
        case None:
            return [_unheard(seen)]
        case "Failed":
            return _failed(seen)
        case "Suspended":
            return [Cause("job", f"it is suspended: {message}", f"orchestra resume {name}")]
        case "Succeeded":
            return [Cause("job", message or "it is done")]
        case "Queued":
            return [_queued(seen, said.reason if said else "", message), *_before(seen)]
        case "Pending":
            return [*_pending(seen), *_before(seen)]
        case "Running" if len(seen.pods) and all(pod.status.phase == "Running" for pod in seen.pods):
            return [Cause("job", _progress(seen, message)), *_before(seen)]
        case _:
            waiting = [*_half_gang(seen), *why_pods.causes(seen)]
            return [*(waiting or [Cause("job", message or f"it is {current.phase}")]), *_before(seen)]


def _queue_unwell(seen: Observed) -> list[Cause]:
    """What the operator says against the job's queue, while the job waits."""
    current = status.status_of(seen.job)
    queue = next((one for one in seen.queues if one.metadata.name == seen.job.spec.job_queue), None)
    waits = current.phase in (None, "Pending", "Queued", "Provisioning")
    if not waits or queue is None or queue.status is None or queue.status.phase not in ("Invalid", "Degraded"):
        return []
    wrong = [one for one in queue.status.conditions if one.status == "False" and one.type != "Ready"]  # that sums up
    return [Cause("queue", f"queue {queue.metadata.name}: {one.reason}: {one.message}") for one in wrong]


def _unheard(seen: Observed) -> Cause:
    created = status.seconds_of(seen.job.metadata.creation_timestamp) or seen.now
    waited = max(0.0, seen.now - created)
    text = f"no operator has looked at it since it was created {waited:.0f} s ago"
    return Cause("job", text, "orchestra doctor" if waited > _UNHEARD_SECONDS else "")


def _failed(seen: Observed) -> list[Cause]:
    name, current, said = seen.job.metadata.name, status.status_of(seen.job), status.phase_condition(seen.job)
    reason, message = (said.reason, said.message) if said else ("", "")
    if reason == "Cancelled":
        return [Cause("job", message)]
    if current.failure is not None and reason not in ("DeadlineExceeded", "PendingTimeout"):
        return [_rank(seen, f"orchestra logs {name}")]
    mends = {
        "DeadlineExceeded": "raise activeDeadlineSeconds and submit it again: it goes on from its last checkpoint",
        "SyncFailed": f"kubectl logs {name}-sync-0, then submit it again",
        "PendingTimeout": "raise lifecycle.pendingTimeoutSeconds, or mend what it waited for",
    }
    return [Cause("job", f"{reason}: {message}", mends.get(reason, f"orchestra logs {name}"))]


def _rank(seen: Observed, mend: str) -> Cause:
    """The first rank that failed. A hang is told with what hung."""
    failure = status.status_of(seen.job).failure
    if failure is None:
        return Cause("rank", "it failed, and no rank said why", mend)
    where = f"rank {failure.rank}" if failure.rank is not None else f"node {failure.pod}" if failure.pod else "the job"
    code = f", exit code {failure.exit_code}" if failure.exit_code is not None else ""
    return Cause("rank", f"{failure.reason} on {where}{code}: {failure.message or 'no message'}", mend)


def _before(seen: Observed) -> list[Cause]:
    """What ended the attempt before this one, if one did."""
    current = status.status_of(seen.job)
    if current.failure is None or current.phase in status.FINISHED:
        return []
    told = _rank(seen, f"orchestra logs {seen.job.metadata.name}")
    first = told.message.splitlines()[0]
    return [Cause("rank", f"the attempt before ended: {first}", told.mend)]


def _pending(seen: Observed) -> list[Cause]:
    said = status.phase_condition(seen.job)
    reason, message = (said.reason, said.message) if said else ("", "")
    if reason == "QueueNotFound":
        return [_no_queue(seen)]
    if reason == "Invalid":
        about: Literal["volumes", "job"] = "volumes" if "spec.storage." in message else "job"
        return [Cause(about, message, "delete it, mend the file and submit it again: orchestra validate FILE")]
    budget = status.status_of(seen.job).budget
    left = (status.seconds_of(budget.not_before) or 0.0) - seen.now if budget else 0.0
    if left > 0:
        return [Cause("job", f"it starts again in {left:.0f} s")]
    return [Cause("job", f"{reason}: {message}" if message else "its operator is about to start it")]


def _no_queue(seen: Observed) -> Cause:
    wanted = seen.job.spec.job_queue
    names = sorted({queue.metadata.name for queue in seen.queues})
    guess = nearest(wanted, names)
    known = f"there are: {', '.join(names)}" if names else "there is none"
    mend = f"did you mean {guess}? delete the job and submit it again; or " if guess else ""
    text = f"there is no TorchrunQueue {wanted} in {seen.namespace} or {SHARED_NAMESPACE}; {known}"
    return Cause("queue", text, f"{mend}kubectl apply -f the queue's file: the job starts when it appears")


def _queued(seen: Observed, reason: str, message: str) -> Cause:
    """The operator's own words have the numbers; who could make room is added."""
    if reason == QUOTA_EXCEEDED:
        text = f"the quota of namespace {seen.namespace} is too small: {message}"
        return Cause(
            "queue", text, f"ask for less, or have it raised: kubectl -n {seen.namespace} describe resourcequota"
        )
    if reason == GANG_RELEASED:
        return Cause("gang", message, "ask for fewer nodes, wait, or give the queue a gang scheduler (scheduling.gang)")
    if reason == NEVER_FITS:
        return Cause("queue", message)
    if reason != QUEUE_LIMIT:  # the API server refuses its pods
        return Cause(
            "job", f"{reason}: {message}", f"kubectl -n {seen.namespace} describe torchrunjob {seen.job.metadata.name}"
        )
    wanted = seen.job.spec.job_queue
    mine = [other for other in seen.others if other.spec.job_queue == wanted]
    holding = [other for other in mine if status.status_of(other).phase in ("Running", "Provisioning")]
    held = ", ".join(f"{one.metadata.name} ({_gpus(one)})" for one in holding)
    mend = f"orchestra suspend {holding[0].metadata.name}, or wait" if holding else ""
    return Cause("queue", f"{message}; GPUs are held by {held}" if held else message, mend)


def _gpus(job: TorchrunJob) -> str:
    gpus = status.status_of(job).gpus
    return "?" if gpus is None else str(gpus)


def _half_gang(seen: Observed) -> list[Cause]:
    """Some of its workers hold nodes while others find none, and nobody places them at once."""
    found = next((one for one in status.status_of(seen.job).conditions if one.type == "Scheduled"), None)
    if found is None or found.status == "True" or found.reason != HALF_GANG:
        return []
    return [Cause("gang", found.message, "it gives its places back after lifecycle.gangTimeoutSeconds and tries again")]


def _progress(seen: Observed, message: str) -> str:
    progress = status.status_of(seen.job).progress
    if progress is None or progress.step is None:
        return f"{message or 'all workers are running'}; no rank has reported a step yet"
    text = status.progress_text(progress) or str(progress.step)
    return f"it trains: step {text}" if progress.total_steps else f"it trains: step {progress.step}"
