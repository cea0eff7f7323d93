"""What is observed about a job and what is decided about it: the words that all policies share. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from orchestra.api.job import Phase, Progress, TorchrunJob, TorchrunJobStatus
from orchestra.api.problem import Problem
from orchestra.operator import half_gangs, quotas
from orchestra.operator.kinds import GroupCondition, PodObject
from orchestra.operator.lost_nodes import Losses
from orchestra.operator.queueing.line import Place
from orchestra.plan import Plan, status

CREATED = "Created"
"""The condition that says whether all workers of the attempt have been created."""


@dataclass(frozen=True)
class Observation:
    """Everything that matters about one job, taken from the caches at one moment."""

    job: TorchrunJob
    """With its status."""
    plan: Plan | None
    """None when there is none: see `problems` and `queue_missing`."""
    problems: tuple[Problem, ...]
    queue_missing: bool
    pods: tuple[PodObject, ...]
    """All pods that the job controls, but for the one that fills its workspace."""
    progress: Progress | None
    """What rank 0 last reported."""
    in_place: int = 0
    """Restarts in place that an agent of this attempt told of: who is killed has no last word."""
    generation: int = 0
    sync_pod: PodObject | None = None
    """The pod that fills the claim of its workspace."""
    cancelled: bool = False
    """Somebody asked for its end."""
    restart_attempt: int = 0
    """The attempt that somebody wants followed by a new one."""
    place: Place | None = None
    """Its place in the line of its queue; None where the queue has no line."""
    losses: Losses = field(default_factory=Losses)
    """Which of the pods are on lost nodes."""
    progress_silence: str | None = None
    """Why the job's progress cannot be had from its agent."""
    not_taken: tuple[Problem, ...] = ()
    """Changes of the spec that the API server could not refuse; `job` does not have them."""
    shared_claims: tuple[str, ...] = ()
    """Claims that the attempt under way waits for on all nodes, whatever the next one will do."""
    claims_refused: bool = False
    """The attempt waits for volumes that its storage class will never give; the plan is already another one."""
    born: str = ""
    """When the job was created."""
    rivals: tuple[half_gangs.Rival, ...] = ()
    """Other jobs that wait for places, where no gang scheduler hands them out; looked for only when it matters."""
    quotas: tuple[quotas.QuotaObject, ...] = ()
    """Those of the job's namespace."""
    group: GroupCondition | None = None
    """What a gang scheduler says about the gang, where its pods do not say it."""

    @property
    def all_pods(self) -> tuple[PodObject, ...]:
        """With the one that fills the workspace."""
        return self.pods if self.sync_pod is None else (*self.pods, self.sync_pod)

    @property
    def seniority(self) -> half_gangs.Seniority:
        """Its place among others that wait."""
        return half_gangs.Seniority(self.born, self.job.metadata.uid or "")


@dataclass(frozen=True)
class Told:
    """An event to tell."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True)
class Decision:
    """What should be so now."""

    status: TorchrunJobStatus
    create: bool = False
    """Create whatever of the current attempt is not there."""
    fill: bool = False
    """Create the claim of the workspace, and the pod that fills it."""
    replace: tuple[int, ...] = ()
    """Indices of further workers of an elastic attempt."""
    delete: tuple[PodObject, ...] = ()
    stop: tuple[PodObject, ...] = ()
    """End these gracefully, but keep them: their logs go with them."""
    delete_grace: int | None = None
    """Seconds that the deleted pods get, where it is less than their own: what a lost member leaves cannot save."""
    delete_job: bool = False
    look_again: float | None = None
    events: tuple[Told, ...] = field(default=())

    @property
    def guarded(self) -> bool:
        """Whether the status write must not reach a namesake: new attempts and ends."""
        return self.create or bool(self.replace) or self.status.phase in status.RESTING


def told(
    job: TorchrunJob, phase: Phase, reason: str, message: str, now: float, *, warning: bool = False, news: bool = False
) -> Decision:
    """A decision to be in a phase, with an event when that is new: another phase or reason, or (a warning, or said to
    be news) another sentence. Sentences that only count further are no events.
    """
    before = status.phase_condition(job)
    made = status.status_of(status.in_phase(job, phase, reason, message, now))
    same = before is not None and (status.status_of(job).phase, before.reason) == (phase, reason)
    if same and (not (warning or news) or (before is not None and before.message == message)):
        return Decision(made)
    kind: Literal["Normal", "Warning"] = "Warning" if warning else "Normal"
    return Decision(made, events=(Told(reason, f"{phase}: {message}", kind),))


def living(seen: Observation, pods: Iterable[PodObject]) -> tuple[PodObject, ...]:
    """Those whose processes may be at work where somebody could hear of it: what a lost node runs is fenced off."""
    return tuple(pod for pod in pods if not pod.ended and not seen.losses.is_lost(pod))


def workers_first(seen: Observation, pods: Iterable[PodObject]) -> tuple[PodObject, ...]:
    """What of these is to be deleted now: the store only after the last worker, for ranks that save still need it."""
    needed = any(pod.is_worker for pod in living(seen, seen.pods))
    return tuple(pod for pod in pods if not pod.leaving and (pod.is_worker or not needed))
