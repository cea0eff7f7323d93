"""Why a job on a cluster is where it is: ordered causes, from what was observed; never a guess. Pure."""

from __future__ import annotations

from dataclasses import dataclass

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
    found = _causes(seen)
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
            return [_queued(seen, message)]
        case "Pending":
            return [*_pending(seen), *_before(seen)]
        case "Running" if len(seen.pods) and all(pod.status.phase == "Running" for pod in seen.pods):
            return [Cause("job", _progress(seen, message)), *_before(seen)]
        case _:
            waiting = [*_not_created(seen), *why_pods.causes(seen)]
            return [*(waiting or [Cause("job", message or f"it is {current.phase}")]), *_before(seen)]


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
        return [Cause("job", message, "delete it, mend the file and submit it again: orchestra validate FILE")]
    budget = status.status_of(seen.job).budget
    left = (status.seconds_of(budget.not_before) or 0.0) - seen.now if budget else 0.0
    if left > 0:
        return [Cause("job", f"it starts again in {left:.0f} s")]
    return [*_not_created(seen), Cause("job", message or "its operator is about to start it")][:1]


def _no_queue(seen: Observed) -> Cause:
    wanted = seen.job.spec.job_queue
    names = sorted({queue.metadata.name for queue in seen.queues})
    guess = nearest(wanted, names)
    known = f"there are: {', '.join(names)}" if names else "there is none"
    mend = f"did you mean {guess}? delete the job and submit it again; or " if guess else ""
    text = f"there is no TorchrunQueue {wanted} in {seen.namespace} or {SHARED_NAMESPACE}; {known}"
    return Cause("queue", text, f"{mend}kubectl apply -f the queue's file: the job starts when it appears")


def _queued(seen: Observed, message: str) -> Cause:
    """The line of its queue, in numbers, as far as this namespace's jobs show them."""
    job, wanted = seen.job, seen.job.spec.job_queue
    queue = next((one for one in seen.queues if one.metadata.name == wanted), None)
    mine = [other for other in seen.others if other.spec.job_queue == wanted]
    holding = [other for other in mine if status.status_of(other).phase in ("Running", "Provisioning")]
    born = job.metadata.creation_timestamp or ""
    ahead = [
        other.metadata.name
        for other in mine
        if status.status_of(other).phase == "Queued" and (other.metadata.creation_timestamp or "") < born
    ]
    parts = [message or "it waits in the line of its queue"]
    if queue is not None and queue.spec.resources.gpu.limit.whole >= 0:
        used = f"{queue.status.gpus.used}" if queue.status and queue.status.gpus else "unknown"
        parts.append(f"queue {wanted} may use {queue.spec.resources.gpu.limit} GPUs, in use: {used}")
    if holding:
        parts.append("held by " + ", ".join(f"{one.metadata.name} ({_gpus(one)})" for one in holding))
    if ahead:
        parts.append(f"waiting before it: {', '.join(ahead)}")
    mend = f"orchestra suspend {holding[0].metadata.name}, or wait" if holding else ""
    return Cause("queue", "; ".join(parts), mend)


def _gpus(job: TorchrunJob) -> str:
    gpus = status.status_of(job).gpus
    return "?" if gpus is None else str(gpus)


def _not_created(seen: Observed) -> list[Cause]:
    """The API server refuses its pods or other objects: told by the operator's last warning about it."""
    current = status.status_of(seen.job)
    made = next((one for one in current.conditions if one.type == "Created"), None)
    if made is None or made.status == "True" or seen.pods:
        return []
    about = [one for one in seen.events if one.involved_object.uid == seen.job.metadata.uid]
    refused = [one for one in about if one.reason in ("CreateFailed", "NameTaken")]
    if not refused:
        return []
    last = max(refused, key=lambda one: one.time)
    if "exceeded quota" in last.message:
        text = f"the quota of namespace {seen.namespace} is too small: {last.message}"
        return [Cause("queue", text, f"kubectl -n {seen.namespace} describe resourcequota")]
    return [Cause("job", f"{last.reason}: {last.message}")]


def _progress(seen: Observed, message: str) -> str:
    progress = status.status_of(seen.job).progress
    if progress is None or progress.step is None:
        return f"{message or 'all workers are running'}; no rank has reported a step yet"
    text = status.progress_text(progress) or str(progress.step)
    return f"it trains: step {text}" if progress.total_steps else f"it trains: step {progress.step}"
