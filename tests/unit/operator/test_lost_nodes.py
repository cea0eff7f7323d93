"""Which nodes are lost, as a pure function of what was seen and the time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from orchestra.kube.objects import Metadata
from orchestra.kube.pods import Condition, PodStatus
from orchestra.operator.kinds import NodeObject, NodeStatus, PodObject, PodSpec
from orchestra.operator.lost_nodes import Losses, Sign, last_life, losses, with_our_tolerations
from orchestra.plan.status import timestamp

NOW = 1_800_000_000.0
PATIENCE = 30.0


def a_node(ready: str = "True", since: float = NOW - 1000) -> NodeObject:
    condition = Condition(type="Ready", status=ready, last_transition_time=timestamp(since))
    return NodeObject(metadata=Metadata(name="n1"), status=NodeStatus(conditions=(condition,)))


def a_pod(phase: str = "Running", deleted: float | None = None) -> PodObject:
    gone = timestamp(deleted) if deleted is not None else None
    meta = Metadata(name="job-0", namespace="ns", uid="pod", deletion_timestamp=gone)
    return PodObject(metadata=meta, spec=PodSpec(node_name="n1"), status=PodStatus(phase=phase))


def judged(node: NodeObject | None, sign: Sign | None, pod: PodObject | None = None) -> Losses:
    return losses([pod or a_pod()], {"n1": node}, {"pod": sign}, PATIENCE, NOW)


SILENT = Sign(suspected=NOW - 100, asked=50)


def test_a_ready_node_is_never_lost_and_nobody_is_asked() -> None:
    assert judged(a_node(), SILENT) == Losses()


@pytest.mark.parametrize("ready", ["False", "Unknown"])
def test_a_node_that_is_not_ready_and_silent_for_long_is_lost(ready: str) -> None:
    made = judged(a_node(ready, NOW - 31), SILENT)
    assert "node n1 is not ready" in made.lost["pod"]
    assert made.look_again is None


def test_a_node_that_is_gone_is_lost_once_we_have_waited_ourselves() -> None:
    assert "node n1 is gone" in judged(None, SILENT).lost["pod"]
    fresh = judged(None, Sign(suspected=NOW - 10, asked=5))
    assert not fresh.lost
    assert fresh.look_again == pytest.approx(20)


def test_a_node_that_is_not_ready_but_trains_is_left_alone() -> None:
    alive = Sign(suspected=NOW - 1000, asked=500, alive=NOW - 2)
    made = judged(a_node("Unknown", NOW - 1000), alive)
    assert not made.lost
    assert made.look_again == pytest.approx(28)


def test_nothing_is_lost_before_its_agent_was_asked_long_enough_by_us() -> None:
    long_ago = a_node("Unknown", NOW - 1000)
    assert judged(long_ago, None).look_again == pytest.approx(1)
    assert not judged(long_ago, Sign(suspected=NOW, asked=0)).lost
    assert not judged(long_ago, Sign(suspected=NOW - 2, asked=1)).lost, "another clock alone is not believed"
    assert judged(long_ago, Sign(suspected=NOW - 6, asked=3)).lost, "a restarted operator need not wait again"


def test_what_ended_or_was_never_placed_is_not_lost() -> None:
    assert judged(a_node("Unknown"), SILENT, a_pod("Failed")) == Losses()
    unplaced = msgspec.structs.replace(a_pod("Pending"), spec=PodSpec())
    assert judged(a_node("Unknown"), SILENT, unplaced) == Losses()


def test_a_deleted_pod_that_nobody_can_end_does_not_hold_the_job_though_it_trains_on() -> None:
    alive = Sign(suspected=NOW - 1000, asked=500, alive=NOW - 2)
    assert not judged(a_node("Unknown"), alive, a_pod(deleted=NOW - 5)).lost
    assert judged(a_node("Unknown"), alive, a_pod(deleted=NOW - 31)).lost


def report(state: str = "running", **rank: Any) -> dict[str, Any]:
    return {"state": state, "ranks": {"0": {"state": "running", **rank}}}


def test_life_is_progress_of_ranks_that_report_it() -> None:
    assert last_life(report(quietSeconds=3, progress={"step": 7}), NOW) == NOW - 3
    slow = report(quietSeconds=50, progress={"step": 7, "stepSeconds": 20})
    assert last_life(slow, NOW) == NOW, "a slow step is no loss"
    assert last_life(report(quietSeconds=50, progress={"step": 7, "phase": "eval"}), NOW) == NOW
    assert last_life(report(quietSeconds=50, progress=None), NOW) == NOW, "a script that reports nothing is not judged"
    assert last_life(report("done"), NOW) is None
    assert last_life({"state": "starting", "ranks": {}}, NOW) == NOW
    assert last_life(["nonsense"], NOW) is None


def test_workers_are_not_evicted_by_anybody_else_from_a_silent_node() -> None:
    ours = with_our_tolerations([])
    assert {one["key"] for one in ours} == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert {one["effect"] for one in ours} == {"NoExecute"}, "nothing is placed there"
    own = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 5}
    assert [one["key"] for one in with_our_tolerations([own])] == [own["key"], "node.kubernetes.io/not-ready"]
    assert with_our_tolerations([{"operator": "Exists"}]) == [{"operator": "Exists"}]
