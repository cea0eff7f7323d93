"""Elastic jobs: how many workers there are, which are replaced, and when the attempt is over. Pure.

As many pods are created as the job may have nodes (docs/adr/0031). Those that find no room stay Pending: they are the
offer of growth, and torchrun takes each in when it starts. A worker that vanishes is replaced by one with the next free
index, so that no name is ever borne by two of one attempt; the others go on meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestra.api.job import Failure
from orchestra.operator.kinds import PodObject
from orchestra.operator.lost_nodes import Losses
from orchestra.operator.verdicts import outcome_of_ended, preempted, result_of, wait_for_words
from orchestra.plan import Plan
from orchestra.plan.outcome import Outcome

RANGE = "torchrun.ai/elastic"
"""Annotation of an elastic job's workers: the range that their launchers were started with."""
ROUNDS = 1000
"""Rounds that torchrun may start anew. Those after the loss of a member are free, so the agent counts the others."""


def wanted(plan: Plan) -> int:
    """How many workers are created."""
    return plan.max_nodes if plan.elastic else plan.node_count


def needed(plan: Plan) -> int:
    """How many workers must run."""
    return plan.min_nodes if plan.elastic else plan.node_count


def marks(plan: Plan) -> dict[str, str]:
    """What tells a worker of another range."""
    return {RANGE: f"{plan.min_nodes}:{plan.max_nodes}"} if plan.elastic else {}


def outdated(workers: tuple[PodObject, ...], plan: Plan) -> bool:
    """Whether these were started with another range: torchrun's nodes must all know the same one."""
    now = marks(plan).get(RANGE)
    alive = (pod for pod in workers if not pod.ended and not pod.leaving)
    return any((pod.metadata.annotations or {}).get(RANGE) != now for pod in alive)


@dataclass(frozen=True)
class Crew:
    """The workers of one elastic attempt, told apart."""

    members: tuple[PodObject, ...]
    """They run, as far as anybody knows."""
    offers: tuple[PodObject, ...]
    """They wait for room."""
    leaving: tuple[PodObject, ...]
    """Members that somebody deletes: they save and stop, and all others with them."""
    told: tuple[PodObject, ...]
    """Ended, with a last word."""

    @property
    def done(self) -> bool:
        """Whether a worker has come to the end of the training."""
        return any((result := result_of(pod)) is not None and result.state == "done" for pod in self.told)


def crew_of(workers: tuple[PodObject, ...], losses: Losses) -> Crew:
    """Who is who. Who ended without a word, or waits on a lost node, is nobody any more."""
    alive = tuple(pod for pod in workers if not pod.ended and not losses.is_lost(pod))
    running = tuple(pod for pod in alive if pod.status.phase == "Running")
    return Crew(
        members=tuple(pod for pod in running if not pod.leaving),
        offers=tuple(pod for pod in alive if pod.status.phase != "Running" and not pod.leaving),
        leaving=tuple(pod for pod in running if pod.leaving),
        told=tuple(pod for pod in workers if pod.ended and result_of(pod) is not None),
    )


def outcome(crew: Crew, plan: Plan, *, running: bool, now: float, patience: float) -> Outcome | float | None:
    """How the attempt ended; seconds to wait for the last words of others; None while it goes on.

    `running`: the job had enough members before, so that too few now are a loss and not a beginning.
    """
    if crew.leaving:
        return preempted(crew.leaving[0])
    fallen = tuple(pod for pod in crew.told if pod.status.phase == "Failed")
    if fallen:
        left = wait_for_words(fallen, now, patience) if crew.members else 0.0
        return left if left > 0 else outcome_of_ended(crew.told)
    if crew.done:
        return None if crew.members else outcome_of_ended(crew.told)
    if running and len(crew.members) < plan.min_nodes:
        text = f"{len(crew.members)} workers are left, and the job needs {plan.min_nodes}"
        return Outcome("lost", failure=Failure(reason="NodeLost", message=text))
    return None


def missing(crew: Crew, plan: Plan) -> int:
    """How many workers are to be created anew. None once the training has come to its end somewhere."""
    if crew.done or crew.leaving:
        return 0
    return max(0, plan.max_nodes - len(crew.members) - len(crew.offers))
