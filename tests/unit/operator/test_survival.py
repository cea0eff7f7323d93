"""Decisions about lost nodes, lost stores and elastic jobs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from builders import a_job, a_queue
from orchestra.api.base import to_builtins
from orchestra.api.job import Progress, TorchrunJob, Workers
from orchestra.kube.objects import Metadata, OwnerReference
from orchestra.kube.pods import ContainerState, ContainerStatus, PodStatus, Terminated
from orchestra.operator.attempt import plan_attempt, pod_children
from orchestra.operator.decide import decide
from orchestra.operator.decision import Decision, Observation
from orchestra.operator.kinds import PodObject, PodSpec
from orchestra.operator.lost_nodes import Losses
from orchestra.operator.pods import PodOptions
from orchestra.plan import status

NOW = 1_800_000_000.0
UID = "uid-1"
RANGE = {"minNodes": 1, "maxNodes": 3}


def a_pod(
    index: int,
    phase: str = "Running",
    attempt: int = 1,
    *,
    leaving: bool = False,
    ended: Terminated | None = None,
    role: str = "worker",
    marks: str | None = None,
    reason: str = "",
) -> PodObject:
    labels = {"torchrun.ai/role": role, "torchrun.ai/attempt": str(attempt), "torchrun-node-index": str(index)}
    owner = OwnerReference(api_version="torchrun.ai/v1alpha1", kind="TorchrunJob", name="job", uid=UID, controller=True)
    meta = Metadata(
        name=f"job-{index}-r{attempt}-{role}",
        namespace="ns",
        uid=f"{role}-{index}-{attempt}",
        labels=labels,
        annotations={"torchrun.ai/elastic": marks} if marks else None,
        owner_references=(owner,),
        deletion_timestamp="2027-01-01T00:00:00Z" if leaving else None,
    )
    containers = (ContainerStatus(name="trainer", state=ContainerState(terminated=ended)),)
    return PodObject(
        metadata=meta,
        spec=PodSpec(node_name=f"n{index}"),
        status=PodStatus(phase=phase, container_statuses=containers, reason=reason),
    )


def store(attempt: int = 1, phase: str = "Running", *, leaving: bool = False) -> PodObject:
    return a_pod(-1, phase, attempt, role="store", leaving=leaving)


def member(index: int, phase: str = "Running", **more: Any) -> PodObject:
    return a_pod(index, phase, marks="1:3", **more)


def ended(index: int, state: str, **result: Any) -> PodObject:
    code = {"done": 0, "stopped": 75}.get(state, 1)
    said = Terminated(exit_code=code, message=json.dumps({"state": state, **result}))
    return member(index, "Succeeded" if code == 0 else "Failed", ended=said)


def killed(index: int) -> PodObject:
    return member(index, "Failed", ended=Terminated(exit_code=137, reason="Error"))


def job(phase: str = "Running", attempt: int = 1, **spec: Any) -> TorchrunJob:
    made = status.with_status(a_job(**({"numGPUs": 16} | spec)), attempt=attempt)
    made = status.in_phase(made, phase, "Test", "test", NOW - 100)  # type: ignore[arg-type]
    created = msgspec.structs.replace(status.status_of(made).conditions[0], type="Created")
    return status.with_status(made, conditions=[*status.status_of(made).conditions, created])


def stretchy(phase: str = "Running", **spec: Any) -> TorchrunJob:
    return job(phase, numGPUs=None, numNodes=2, elastic=RANGE, **spec)


def decided(the_job: TorchrunJob, *pods: PodObject, lost: tuple[PodObject, ...] = (), **more: Any) -> Decision:
    made = plan_attempt(a_queue(), the_job, UID, max(1, status.status_of(the_job).attempt or 1))
    losses = Losses({pod.metadata.uid: "node n1 is gone" for pod in lost})
    now = more.pop("now", NOW)
    seen = Observation(
        job=the_job, plan=made, problems=(), queue_missing=False, pods=pods, losses=losses, **{"progress": None, **more}
    )
    return decide(seen, now)


def names(pods: tuple[PodObject, ...]) -> set[str]:
    return {pod.metadata.name for pod in pods}


# ---- nodes


def test_a_lost_node_starts_a_new_attempt_that_is_free_and_does_not_wait_for_its_pods() -> None:
    pods = (a_pod(0), a_pod(1), store())
    made = decided(job(maxRestarts=0), *pods, lost=(pods[1],))
    assert (made.status.phase, made.status.restarts) == ("Pending", 0)
    assert made.status.failure is not None
    assert (made.status.failure.reason, made.status.failure.message) == ("NodeLost", "node n1 is gone")
    assert names(made.delete) == names(pods), "the kubelet ends it when it comes back"
    assert made.delete_grace == 5, "the others wait for it in vain, and cannot save"
    stuck = a_pod(1, leaving=True)
    again = decided(job("Pending"), stuck, lost=(stuck,))
    assert (again.create, again.status.attempt) == (True, 2)
    assert not decided(job("Pending"), stuck).create, "it may still be alive"


def test_a_suspend_does_not_wait_for_what_is_stuck_on_a_lost_node() -> None:
    stuck = a_pod(1, leaving=True)
    assert decided(job(suspend=True), stuck, lost=(stuck,)).status.phase == "Suspended"
    assert decided(job(suspend=True), stuck).status.phase == "Running"


@pytest.mark.parametrize("phase", ["Running", "Pending"])
def test_the_store_outlives_workers_that_save(phase: str) -> None:
    """Launchers end their ranks when the store is gone (docs/adr/0013)."""
    how: dict[str, Any] = {"suspend": True} if phase == "Running" else {}
    asked = decided(job(phase, **how), a_pod(0), a_pod(1), store())
    assert names(asked.delete) == names((a_pod(0), a_pod(1)))
    saving = decided(job(phase, **how), a_pod(1, leaving=True), store())
    assert (saving.delete, saving.create, saving.status.phase) == ((), False, phase)
    saved = decided(job(phase, **how), store())
    assert (names(saved.delete), saved.create) == ({"job--1-r1-store"}, False)
    preempted = decided(job(maxRestarts=0), a_pod(0), a_pod(1, leaving=True), store())
    assert names(preempted.delete) == names((a_pod(0),)), "all save with the one that leaves"


def test_a_copy_that_comes_back_with_its_node_is_deleted_and_holds_nobody_up() -> None:
    old, new = a_pod(1, attempt=1), (a_pod(0, attempt=2), a_pod(1, attempt=2), store(2))
    first = decided(job(attempt=2), old, *new)
    assert names(first.delete) == {old.metadata.name}
    leaving = decided(job("Provisioning", attempt=2), a_pod(1, attempt=1, leaving=True), *new)
    assert (leaving.status.phase, leaving.delete) == ("Running", ())


@pytest.mark.parametrize("gone", [(), (store(phase="Failed"),), (store(leaving=True),)])
def test_a_lost_store_starts_a_new_attempt_that_is_free(gone: tuple[PodObject, ...]) -> None:
    failure = {"reason": "ExitCode", "message": "torchrun exited with code 1; no rank of this node failed"}
    fell = ended(0, "failed", failure=failure)
    made = decided(job(maxRestarts=0), fell, a_pod(1), *gone)
    assert made.status.failure is not None
    assert (made.status.phase, made.status.failure.reason) == ("Pending", "StoreLost")


def test_what_the_cluster_says_of_a_pod_without_a_last_word_is_the_reason() -> None:
    evicted = a_pod(1, "Failed", reason="Evicted")
    made = decided(job(maxRestarts=0), a_pod(0), evicted, store())
    assert (made.status.phase, made.status.restarts) == ("Pending", 0)
    assert "Evicted" in str(made.status.failure)


def test_a_killed_agent_ends_the_attempt_though_the_others_notice_nothing() -> None:
    dead = a_pod(1, "Failed", ended=Terminated(exit_code=137, finished_at=status.timestamp(NOW)))
    assert decided(job(), a_pod(0), dead, store(), now=NOW + 1).look_again == pytest.approx(4), "they may tell more"
    assert decided(job(), a_pod(0), dead, store(), now=NOW + 6).status.phase == "Pending"


# ---- elastic


def test_restarts_in_place_are_counted_though_nobody_is_left_to_tell() -> None:
    dead = a_pod(1, "Failed", ended=Terminated(exit_code=137, reason="Error"))
    made = decided(job(maxRestarts=3), a_pod(0), dead, store(), in_place=2)
    assert (made.status.phase, made.status.restarts) == ("Pending", 2)
    assert made.status.budget is not None
    assert (made.status.budget.spent, made.status.budget.free_retries) == (2, 1)
    elastic = decided(stretchy(), killed(0), killed(1), member(2, "Pending"), store(), in_place=2)
    assert elastic.status.restarts == 0, "some of those were free"


def test_an_elastic_job_creates_all_it_may_have_and_runs_with_all_it_needs() -> None:
    made = decided(job("Pending", numGPUs=None, numNodes=2, elastic=RANGE))
    assert made.create
    assert "1 to 3 x 8 processes" in str(made.status.conditions)
    waiting = decided(
        stretchy("Provisioning"), member(0, "Pending"), member(1, "Pending"), member(2, "Pending"), store()
    )
    assert waiting.status.phase == "Provisioning"
    two = decided(stretchy("Provisioning"), member(0), member(1), member(2, "Pending"), store())
    assert (two.status.phase, two.status.nodes, two.status.gpus) == ("Running", 2, 16)
    assert not two.replace
    assert two.status.workers is not None
    assert (two.status.workers.desired, two.status.workers.running) == (3, 2)
    three = decided(stretchy(), member(0), member(1), member(2), store())
    assert three.status.nodes == 3


def test_a_vanished_worker_is_replaced_under_a_new_index_while_the_others_go_on() -> None:
    made = decided(stretchy(), member(0), member(2), store())
    assert (made.status.phase, made.replace, made.delete, made.guarded) == ("Running", (3,), (), True)
    assert (made.status.attempt, made.status.restarts) == (1, None)
    assert made.status.workers is not None
    assert made.status.workers.created == 4
    # it was not created (a crash): the next one gets another name, and waits for its turn
    soon = decided(status.with_status(stretchy(), **changes(made)), member(0), member(2), store())
    assert not soon.replace
    assert soon.look_again == pytest.approx(1, abs=1)
    later = decided(status.with_status(stretchy(), **changes(made)), member(0), member(2), store(), now=NOW + 5)
    assert later.replace == (4,)
    assert decided(stretchy(), member(0), killed(1), member(2), store()).replace == (3,)
    assert not decided(stretchy(restartPolicy="Never"), member(0), killed(1), member(2), store()).replace


def changes(made: Decision) -> dict[str, Any]:
    return {"budget": made.status.budget, "workers": made.status.workers}


def test_too_few_workers_or_a_silent_node_start_all_of_an_elastic_job_anew_for_free() -> None:
    narrow = job(numGPUs=None, numNodes=2, elastic={"minNodes": 2, "maxNodes": 3}, maxRestarts=0)
    few = decided(narrow, *(a_pod(index, marks="2:3") for index in (0,)), store())
    assert few.status.failure is not None
    assert (few.status.phase, few.status.failure.reason, few.status.restarts) == ("Pending", "NodeLost", 0)
    pods = (member(0), member(1), member(2, "Pending"), store())
    silent = decided(stretchy(maxRestarts=0), *pods, lost=(pods[1],))
    assert (silent.status.phase, silent.delete_grace) == ("Pending", 5)


def test_an_offer_on_a_lost_node_is_made_elsewhere() -> None:
    pods = (member(0), member(1), member(2, "Pending"), store())
    made = decided(stretchy(), *pods, lost=(pods[2],))
    assert (made.status.phase, made.replace, names(made.delete)) == ("Running", (3,), {pods[2].metadata.name})


def test_an_elastic_job_is_done_when_its_members_are_and_offers_are_withdrawn() -> None:
    offer = member(2, "Pending")
    one = decided(stretchy(), ended(0, "done"), member(1), offer, store())
    assert (one.status.phase, one.replace, one.status.nodes) == ("Running", (), 2)
    all_done = decided(stretchy(), ended(0, "done"), ended(1, "done"), killed(3), offer, store())
    assert all_done.status.phase == "Succeeded"
    assert names(all_done.delete) == {offer.metadata.name, store().metadata.name}


def test_an_elastic_job_spends_its_budget_on_failures_alone() -> None:
    failure = {"rank": 1, "reason": "Exception", "message": "boom", "time": NOW - 60}
    fell = (ended(0, "failed", failure=failure, restarts=0), ended(1, "failed", failure=failure), store())
    assert decided(stretchy(maxRestarts=0), *fell).status.phase == "Failed"
    assert decided(stretchy(maxRestarts=1), *fell).status.restarts == 1


def test_a_deleted_member_saves_with_all_the_others() -> None:
    made = decided(stretchy(), member(0), member(1, leaving=True), member(2), store())
    assert made.status.phase == "Pending"
    assert made.delete_grace is None
    assert "deleted by somebody else" in str(made.status.failure)


def test_another_range_starts_again_with_a_save() -> None:
    wider = job(numGPUs=None, numNodes=2, elastic={"minNodes": 1, "maxNodes": 4}, restartPolicy="Never")
    made = decided(wider, member(0), member(1), member(2), store(), progress=Progress(step=3))
    assert (made.status.phase, made.delete_grace, made.status.failure) == ("Pending", None, None)
    assert len(made.delete) == 3, "all workers; the store after them"
    assert "1 to 4 nodes" in str(made.status.conditions)
    assert decided(job(), member(0), member(1), store()).status.phase == "Pending", "it is elastic no more"


def test_workers_of_an_elastic_job_know_the_range_and_count_failures_themselves() -> None:
    the_job = stretchy()
    made = plan_attempt(a_queue(), the_job, UID, 1)
    meta = Metadata(name="job", namespace="ns", uid=UID)
    children = {
        c.key.name: to_builtins(c.body) for c in pod_children(made, meta, 1, options=PodOptions(failures_left=2))
    }
    assert list(children) == ["job-rdzv", "job-0", "job-1", "job-2"]
    worker = children["job-2"]
    assert worker["metadata"]["annotations"] == {"torchrun.ai/elastic": "1:3"}
    spec = json.loads(next(e["value"] for e in worker["spec"]["containers"][0]["env"] if e["name"] == "ORCHESTRA_SPEC"))
    assert {"--nnodes=1:3", "--max-restarts=1000", "--local-addr=job-2.job"} <= set(spec["launcherArgv"])
    assert (spec["failuresLeft"], spec["nodes"]) == (2, 3)
    more = status.with_status(the_job, workers=msgspec.structs.replace(Workers(), created=5))
    made = plan_attempt(a_queue(), more, UID, 1)
    assert [c.key.name for c in pod_children(made, meta, 1, further=(3, 4))] == ["job-3", "job-4"]
    tolerated = {one["key"] for one in worker["spec"]["tolerations"]}
    assert "node.kubernetes.io/unreachable" in tolerated
    blind = pod_children(made, meta, 1, options=PodOptions(sees_nodes=False))
    assert all("tolerations" not in to_builtins(c.body)["spec"] for c in blind)
