"""How an attempt stands, from its pods. Pure."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from orchestra.api.job import Failure, Progress, TorchrunJob
from orchestra.kube.pods import Terminated
from orchestra.operator.kinds import PodObject
from orchestra.operator.moving import FETCH, REFUSED, SEND
from orchestra.plan import status
from orchestra.plan.outcome import AgentResult, Outcome, RankFailure, outcome_of
from orchestra.plan.status import seconds_of

_STOPPED = 75
_KILLED = (137, 143)


def outcome_of_pods(
    workers: tuple[PodObject, ...], expected: int, now: float, patience: float
) -> Outcome | float | None:
    """How the attempt ended; seconds to wait for the last words of others; None while it goes on.

    A worker that vanished, or that somebody else deletes, ends the attempt: that is preemption, and free.
    """
    if len(workers) < expected:
        return _lost("a worker was deleted by somebody else")
    ended = tuple(pod for pod in workers if pod.ended)
    leaving = [pod for pod in workers if pod.leaving and not pod.ended]
    if leaving:
        return preempted(leaving[0])
    failed = tuple(pod for pod in ended if pod.status.phase == "Failed")
    if not failed:
        return outcome_of_ended(workers) if len(ended) == expected else None
    if len(ended) < expected:
        left = wait_for_words(failed, now, patience)
        if left > 0:
            return left
    return outcome_of_ended(ended)


def wait_for_words(failed: tuple[PodObject, ...], now: float, patience: float) -> float:
    """Seconds that the others may still take to tell why they failed too."""
    ends = [when for when in map(_ended_at, failed) if when is not None]
    return min(ends) + patience - now if ends else 0.0


def outcome_of_ended(ended: tuple[PodObject, ...]) -> Outcome:
    """One verdict from all that ended. What Kubernetes says of a pod without a last word is its reason."""
    made = outcome_of({pod.index: result_of(pod) for pod in ended})
    if made.state != "lost":
        return made
    silent = [pod for pod in ended if result_of(pod) is None]
    said = next((text for text in map(_why_silent, silent) if text), None)
    return replace(made, failure=Failure(reason="NodeLost", message=said)) if said else made


def _why_silent(pod: PodObject) -> str | None:
    """Evicted, refused by its kubelet, disrupted: as the cluster tells it."""
    if pod.status.reason:
        return f"{pod.metadata.name}: {pod.status.reason}: {pod.status.message}"
    told = (one for one in pod.status.conditions if one.type == "DisruptionTarget" and one.status == "True")
    return next((f"{pod.metadata.name}: {one.reason}: {one.message}" for one in told), None)


def preempted(pod: PodObject) -> Outcome:
    """Somebody else deletes a worker of a living attempt: a scheduler, a person, a node that is drained."""
    told = (one for one in pod.status.conditions if one.type == "DisruptionTarget" and one.status == "True")
    why = next((f" ({one.reason}: {one.message})" for one in told), "")
    return _lost(f"{pod.metadata.name} was deleted by somebody else{why}")


def result_of(pod: PodObject) -> AgentResult | None:
    """The agent's last word, from the pod's termination message."""
    terminated = pod.terminated()
    if terminated is None:
        return _not_fetched(pod)
    if terminated.message.startswith("{"):
        try:
            return msgspec.json.decode(terminated.message, type=AgentResult)
        except msgspec.DecodeError:
            pass
    if terminated.exit_code == 0:
        return AgentResult(state="done")
    if terminated.exit_code == _STOPPED:
        return AgentResult(state="stopped")
    if terminated.reason == "OOMKilled":
        return _failed("OutOfMemory", "the container used more memory than its limit", terminated.exit_code)
    if terminated.exit_code in _KILLED:
        return None  # the agent itself was killed from outside
    return _failed("ExitCode", f"{terminated.reason}: {terminated.message}".strip(": "), terminated.exit_code)


def _not_fetched(pod: PodObject) -> AgentResult | None:
    """The trainer never ran: what it needs could not be fetched. None: evicted, or its node is gone; nobody spoke."""
    ended = pod.terminated_beside(FETCH)
    if ended is None or ended.exit_code in (0, *_KILLED):
        return None
    reason = "SyncRefused" if ended.exit_code == REFUSED else "Sync"
    return _failed(reason, f"{pod.metadata.name}: {_error_line(ended)}", ended.exit_code)


def unsent(workers: tuple[PodObject, ...]) -> str | None:
    """Why not everything that a job wrote is in the store, where its last upload failed."""
    for pod in sorted(workers, key=lambda one: one.index):
        ended = pod.terminated_beside(SEND)
        if ended is not None and ended.exit_code:
            return f"{pod.metadata.name}: {_error_line(ended)}"
    return None


def _error_line(ended: Terminated) -> str:
    lines = [line for line in ended.message.splitlines() if line.strip()]
    found = next((line[7:] for line in reversed(lines) if line.startswith("error: ")), None)
    return found or (lines[-1] if lines else f"{ended.reason}, exit code {ended.exit_code}")


def with_last_words(job: TorchrunJob, workers: tuple[PodObject, ...]) -> TorchrunJob:
    """The job with the progress that its ended workers last reported: nobody can ask them any more."""
    for pod in sorted(workers, key=lambda one: one.index):
        told = result_of(pod)
        if told is not None and told.progress:
            return status.with_progress(job, status.progress_from(told.progress))
    return job


def saved_step(workers: tuple[PodObject, ...]) -> int | None:
    """The step that workers saved when they were told to stop."""
    results = [result_of(pod) for pod in workers]
    return max((told.step for told in results if told and told.checkpoint and told.step is not None), default=None)


def with_saved(job: TorchrunJob, known: TorchrunJob, workers: tuple[PodObject, ...]) -> TorchrunJob:
    """The job with the newest checkpoint that anybody told of: what workers saved when they were told to stop is in
    their last words, and what was `known` before they went is not forgotten for an older report.
    """
    reports = (status.status_of(one).progress for one in (known, job))
    steps = [saved_step(workers), *(one.checkpoint_step for one in reports if one)]
    newest = max((step for step in steps if step is not None), default=None)
    return job if newest is None else status.with_progress(job, Progress(checkpoint_step=newest))


def _failed(reason: str, message: str, code: int) -> AgentResult:
    failure = RankFailure(reason=reason, message=message, exit_code=code)
    return AgentResult(state="failed", exit_code=code, failure=failure)


def _lost(message: str) -> Outcome:
    return Outcome("lost", failure=Failure(reason="Preempted", message=message))


def _ended_at(pod: PodObject) -> float | None:
    """When it failed: by its agent's word, else by the kubelet's."""
    result = result_of(pod)
    if result and result.failure and result.failure.time:
        return result.failure.time
    terminated = pod.terminated()
    return seconds_of(terminated.finished_at) if terminated is not None else None


def why_not_running(workers: tuple[PodObject, ...]) -> str | None:
    """The first true reason why a worker does not run: its container's, else the scheduler's."""
    for pod in sorted(workers, key=lambda one: one.index):
        for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            waiting = container.state.waiting
            if waiting is not None and waiting.reason not in ("", "ContainerCreating", "PodInitializing"):
                return f"{pod.metadata.name}: {waiting.reason}: {waiting.message}"
    for pod in workers:
        for condition in pod.status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False":
                return f"{pod.metadata.name}: {condition.reason}: {condition.message}"
    return None
