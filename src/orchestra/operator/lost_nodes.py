"""Which pods are on a lost node. Pure: what was seen and the time are arguments.

A node is lost when it is not ready, or gone, *and* its agent does not answer or its ranks make no progress for
`nodeLostSeconds`. One of the two is not enough: a kubelet that is being upgraded is silent for minutes while its pods
train on, and an operator outside the cluster never reaches an agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestra.operator.kinds import NodeObject, PodObject
from orchestra.plan.status import seconds_of

NODE_LOST_SECONDS = 30
_OWN_SECONDS = 5.0  # how long we ourselves must have found it silent: other clocks are not believed alone
_SOON = 1.0
_PATIENT_STEPS = 3  # a slow step is not a lost node
_ALIVE = ("setup", "starting", "running", "stopping")
_ANNOUNCED = ("compile", "eval", "save", "load", "init")
_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

Json = dict[str, Any]


@dataclass(frozen=True)
class Sign:
    """What the agent of one pod on an unwell node has shown of itself, by our own clock."""

    suspected: float
    """Since when we ask it."""
    asked: int = 0
    """How often it answered or failed to."""
    alive: float | None = None
    """The last sign of life of its ranks; None: none so far."""


@dataclass(frozen=True)
class Losses:
    """What is known of the nodes of one job's pods."""

    lost: Mapping[str, str] = field(default_factory=dict)
    """UIDs of the pods on lost nodes, each with the reason."""
    look_again: float | None = None
    """Seconds until a node that is not well may be lost."""

    def is_lost(self, pod: PodObject) -> bool:
        """Whether its node is."""
        return pod.metadata.uid in self.lost


def losses(
    pods: Iterable[PodObject],
    nodes: Mapping[str, NodeObject | None],
    signs: Mapping[str, Sign | None],
    patience: float,
    now: float,
) -> Losses:
    """Which of these pods are lost. `nodes` by name (None: gone), `signs` by the pod's UID."""
    lost: dict[str, str] = {}
    soonest: float | None = None
    for pod in pods:
        name = pod.spec.node_name
        if not name or pod.ended:
            continue
        node = nodes.get(name)
        if node is not None and node.ready:
            continue
        left = _seconds_left(node, signs.get(pod.metadata.uid), patience, now)
        overdue = seconds_of(pod.metadata.deletion_timestamp)
        if overdue is not None:  # it should have ended by then, and nobody is there who could end it
            left = min(left, overdue + patience - now)
        if left <= 0:
            what = "is gone" if node is None else "is not ready"
            lost[pod.metadata.uid] = f"node {name} {what}, and {pod.metadata.name} shows no life for {patience:g} s"
        else:
            soonest = left if soonest is None else min(soonest, left)
    return Losses(lost, soonest)


def _seconds_left(node: NodeObject | None, sign: Sign | None, patience: float, now: float) -> float:
    """Until the pod counts as lost."""
    if sign is None or sign.asked == 0:
        return _SOON
    said = node.condition() if node is not None else None
    unwell = seconds_of(said.last_transition_time) if said is not None else None
    since = max(min(unwell if unwell is not None else sign.suspected, now), sign.alive or 0.0)
    return max(since + patience, sign.suspected + min(_OWN_SECONDS, patience)) - now


def last_life(report: Any, now: float) -> float | None:
    """When the ranks behind an agent's `/progress` last showed life; None where nothing lives."""
    if not isinstance(report, dict) or report.get("state") not in _ALIVE:
        return None
    ranks = [one for one in (report.get("ranks") or {}).values() if isinstance(one, dict)]
    running = [one for one in ranks if one.get("state") == "running"]
    if not running:
        return now  # it prepares, or waits for the others: only its agent can judge that
    return now - min(_quiet(one) for one in running)


def _quiet(rank: Json) -> float:
    """Seconds without progress beyond what is usual. Who reports no steps, or announced a phase, is not judged."""
    progress = rank.get("progress") or {}
    quiet, step = rank.get("quietSeconds"), progress.get("stepSeconds")
    unjudged = progress.get("step") is None or progress.get("phase") in _ANNOUNCED
    if unjudged or not isinstance(quiet, int | float):
        return 0.0
    usual = _PATIENT_STEPS * step if isinstance(step, int | float) else 0.0
    return max(0.0, quiet - usual)


def with_our_tolerations(tolerations: list[Json]) -> list[Json]:
    """Tolerations of a worker: Kubernetes itself does not evict it from a silent node, for the operator decides that.

    Only the eviction: nothing is placed on a node that is not ready. Who tolerates these taints already has decided.
    """
    said = {one.get("key") for one in tolerations}
    if None in said:  # everything is tolerated
        return tolerations
    ours = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in _TAINTS if key not in said]
    return [*tolerations, *ours]
