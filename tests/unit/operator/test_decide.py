"""The operator's decisions, as a pure function of what it sees and the time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_job, a_queue
from operator_parts import NOW, UID, a_pod, ended, job, names, seen
from orchestra.api.base import to_builtins
from orchestra.api.job import Progress, TorchrunJobStatus
from orchestra.api.problem import Problem
from orchestra.kube.objects import Metadata
from orchestra.kube.pods import Waiting
from orchestra.operator.attempt import plan_attempt, pod_children, shared_children
from orchestra.operator.decide import decide
from orchestra.operator.decision import Decision, Observation
from orchestra.operator.kinds import PodObject
from orchestra.plan import status


def test_a_new_job_starts_its_first_attempt() -> None:
    made = decide(seen(job()), NOW)
    assert (made.status.phase, made.status.attempt, made.create, made.guarded) == ("Provisioning", 1, True, True)
    assert (made.status.nodes, made.status.procs_per_node, made.status.gpus) == (2, 8, 16)


def test_a_crash_in_the_middle_of_creating_goes_on_creating() -> None:
    made = decide(seen(job("Provisioning", 1, created=False), a_pod(0)), NOW)
    assert made.create
    assert made.status.attempt == 1


def test_all_running_is_running_and_all_done_is_success() -> None:
    made = decide(seen(job("Provisioning", 1), a_pod(0), a_pod(1)), NOW)
    assert made.status.phase == "Running"
    assert made.status.start_time
    store = a_pod(-1, role="store")
    made = decide(seen(job("Running", 1), ended(0, "done"), ended(1, "done"), store), NOW)
    assert made.status.phase == "Succeeded"
    assert made.delete == (store,)


def test_the_last_words_of_a_short_job_are_its_progress() -> None:
    words: dict[str, Any] = {"progress": {"step": 5, "totalSteps": 5, "loss": 0.5}}
    made = decide(seen(job("Running", 1), ended(0, "done", **words), ended(1, "done")), NOW)
    assert (made.status.phase, made.status.progress_text) == ("Succeeded", "5/5 100%")


def test_a_cancelled_job_stops_its_workers_and_then_ends_for_good() -> None:
    store = a_pod(-1, role="store")
    running = replace(seen(job("Running", 1), a_pod(0), a_pod(1), store), cancelled=True)
    made = decide(running, NOW)
    assert (made.status.phase, len(made.stop), made.delete) == ("Running", 2, ()), "ranks that save need the store"
    saved: dict[str, Any] = {"step": 7, "checkpoint": "/out/7"}
    over = replace(seen(job("Running", 1), ended(0, "stopped", **saved), ended(1, "stopped"), store), cancelled=True)
    made = decide(over, NOW)
    said = status.phase_condition(status.with_status(job(), conditions=made.status.conditions))
    assert said is not None
    assert (made.status.phase, said.reason, said.message) == ("Failed", "Cancelled", "cancelled; saved at step 7")
    assert (made.delete, made.status.completion_time is not None) == ((store,), True)


@pytest.mark.parametrize("phase", [None, "Pending", "Suspended"])
def test_a_job_that_does_not_run_is_cancelled_at_once(phase: str | None) -> None:
    waiting = replace(seen(job(phase)), cancelled=True)
    assert decide(waiting, NOW).status.phase == "Failed"
    no_queue = Observation(
        job=job(phase), plan=None, problems=(), queue_missing=True, pods=(), progress=None, cancelled=True
    )
    assert decide(no_queue, NOW).status.phase == "Failed"


def test_one_done_and_one_running_is_no_end() -> None:
    assert decide(seen(job("Running", 1), ended(0, "done"), a_pod(1)), NOW).status.phase == "Running"


def test_a_failure_waits_a_moment_for_the_others_and_then_blames_the_first() -> None:
    failure = {"rank": 3, "reason": "Exception", "message": "boom", "time": NOW - 1}
    first = decide(seen(job("Running", 1), a_pod(0), ended(1, "failed", failure=failure)), NOW)
    assert first.status.phase == "Running"
    assert first.look_again == pytest.approx(4)
    later = decide(seen(job("Running", 1), a_pod(0), ended(1, "failed", failure=failure)), NOW + 10)
    assert later.status.phase == "Pending"
    assert later.status.failure is not None
    assert later.status.failure.rank == 3
    assert names(later.delete) == [a_pod(0).metadata.name]
    assert (later.status.restarts, later.status.budget.spent if later.status.budget else None) == (1, 1)


def test_a_spent_budget_fails_the_job() -> None:
    failure = {"rank": 0, "reason": "Exception", "message": "boom", "time": NOW - 60}
    made = decide(
        seen(job("Running", 1, restartPolicy="Never"), ended(0, "failed", failure=failure), ended(1, "failed")), NOW
    )
    assert (made.status.phase, made.status.failure.reason if made.status.failure else None) == ("Failed", "Exception")


@pytest.mark.parametrize("pods", [(a_pod(0),), (a_pod(0), a_pod(1, leaving=True))])
def test_a_worker_that_somebody_deletes_is_preemption_and_free(pods: tuple[PodObject, ...]) -> None:
    made = decide(seen(job("Running", 1, maxRestarts=0), *pods), NOW)
    assert made.status.phase == "Pending"
    assert made.status.restarts == 0
    assert made.status.budget is not None
    assert (made.status.budget.spent, made.status.budget.free_retries) == (0, 1)


def test_a_new_attempt_waits_for_the_pause_and_for_old_pods() -> None:
    waiting = job("Pending", 1)
    budget = msgspec.convert({"notBefore": status.timestamp(NOW + 30)}, type(TorchrunJobStatus().budget or _budget()))
    paused = status.with_status(waiting, budget=budget)
    assert not decide(seen(paused), NOW).create
    assert decide(seen(paused), NOW).look_again == pytest.approx(30, abs=1)
    assert decide(seen(paused), NOW + 31).create
    assert not decide(seen(waiting, a_pod(0)), NOW).create, "never two live copies"
    assert decide(seen(waiting, ended(0, "failed")), NOW).create


def _budget() -> Any:
    from orchestra.api.job import RestartBudget

    return RestartBudget()


def test_suspending_deletes_gracefully_and_rests_when_all_are_gone() -> None:
    asked = decide(seen(job("Running", 1, suspend=True), a_pod(0), a_pod(1, leaving=True)), NOW)
    assert names(asked.delete) == [a_pod(0).metadata.name]
    assert asked.status.phase == "Running"
    done = decide(seen(job("Running", 1, suspend=True), progress=Progress(checkpoint_step=7)), NOW)
    assert done.status.phase == "Suspended"
    assert "step 7" in str(done.status.conditions)
    resumed = decide(seen(job("Suspended", 1)), NOW)
    assert (resumed.create, resumed.status.attempt) == (True, 2)


def test_what_was_saved_for_a_suspension_is_known_by_the_workers_last_words() -> None:
    last = ended(0, "stopped", step=12, checkpoint="/out/12")
    old = Progress(step=11, checkpoint_step=10)  # as it was last asked for
    saving = decide(seen(job("Running", 1, suspend=True), last, a_pod(1, leaving=True), progress=old), NOW)
    assert saving.status.progress is not None
    assert saving.status.progress.checkpoint_step == 12
    told = msgspec.structs.replace(job("Running", 1, suspend=True), status=saving.status)
    rests = decide(seen(told, progress=old), NOW)
    assert rests.status.phase == "Suspended"
    assert "saved at step 12" in str(rests.status.conditions)


def test_a_missing_queue_and_an_impossible_size_wait_with_the_reason() -> None:
    missing = Observation(job=job(), plan=None, problems=(), queue_missing=True, pods=(), progress=None)
    made = decide(missing, NOW)
    assert (made.status.phase, made.create) == ("Pending", False)
    assert "no TorchrunQueue" in str(made.status.conditions)
    wrong = Observation(
        job=job(), plan=None, problems=(Problem("spec.numGPUs", "odd"),), queue_missing=False, pods=(), progress=None
    )
    assert any(c.type == "Valid" and c.status == "False" for c in decide(wrong, NOW).status.conditions)


def test_deadline_ttl_and_pending_timeout() -> None:
    late = status.with_status(job("Running", 1, activeDeadlineSeconds=60), start_time=status.timestamp(NOW - 61))
    made = decide(seen(late, a_pod(0), a_pod(1)), NOW)
    assert (made.status.phase, len(made.stop), len(made.delete)) == ("Failed", 2, 0), "stopped, and kept for their logs"
    over = status.with_status(
        job("Succeeded", 1, ttlSecondsAfterFinished=10), completion_time=status.timestamp(NOW - 11)
    )
    assert decide(seen(over), NOW).delete_job
    orphan = Observation(job=over, plan=None, problems=(), queue_missing=True, pods=(), progress=None)
    assert decide(orphan, NOW).delete_job, "though its queue is gone"
    fresh = status.with_status(over, completion_time=status.timestamp(NOW - 4))
    assert not decide(seen(fresh), NOW).delete_job
    assert decide(seen(fresh), NOW).look_again == pytest.approx(6)
    stuck = job("Provisioning", 1, lifecycle={"pendingTimeoutSeconds": 50})
    image = a_pod(1, "Pending", waiting=Waiting(reason="ImagePullBackOff", message="no such image"))
    made = decide(seen(stuck, a_pod(0, "Pending"), image), NOW)
    assert made.status.phase == "Failed"
    assert "ImagePullBackOff" in str(made.status.conditions)


def test_a_clock_that_begins_with_a_decision_is_looked_at_again_though_nothing_else_happens() -> None:
    starts = decide(seen(job("Provisioning", 1, activeDeadlineSeconds=60), a_pod(0), a_pod(1)), NOW)
    assert starts.status.phase == "Running"
    assert starts.look_again == pytest.approx(60, abs=1)
    both = ended(0, "done"), ended(1, "done")
    ends = decide(seen(job("Running", 1, ttlSecondsAfterFinished=10), *both), NOW)
    assert ends.status.phase == "Succeeded"
    assert ends.look_again == pytest.approx(10, abs=1)


_PODS = st.lists(
    st.one_of(
        st.builds(
            a_pod, st.integers(0, 1), st.sampled_from(["Pending", "Running"]), st.integers(0, 2), leaving=st.booleans()
        ),
        st.builds(ended, st.integers(0, 1), st.sampled_from(["done", "stopped", "failed", "hang"]), st.integers(0, 2)),
    ),
    max_size=4,
)


@given(
    phase=st.sampled_from([None, "Pending", "Provisioning", "Running", "Suspended", "Succeeded", "Failed"]),
    attempt=st.integers(0, 2), created=st.booleans(), suspend=st.booleans(), pods=_PODS,
)  # fmt: skip
def test_whatever_it_sees_it_decides_the_same_twice_and_keeps_its_promises(
    phase: str | None, attempt: int, created: bool, suspend: bool, pods: list[PodObject]
) -> None:
    observed = seen(job(phase, attempt, created, suspend=suspend), *pods)
    first, second = decide(observed, NOW), decide(observed, NOW)
    assert first == second
    _keeps_promises(first, observed)


def _keeps_promises(made: Decision, observed: Observation) -> None:
    before = status.status_of(observed.job)
    if made.create:
        older = [pod for pod in observed.pods if not pod.ended and pod.attempt != made.status.attempt]
        assert not older, "a new attempt never starts beside a living old pod"
        assert not observed.job.spec.suspend
    if before.phase in status.FINISHED:
        assert made.status.phase == before.phase, "an end is an end"
    assert (made.status.attempt or 0) - (before.attempt or 0) in (0, 1)
    assert all(not pod.leaving for pod in made.delete), "nothing is deleted twice"


# ---- objects


def test_objects_of_an_attempt_have_names_owners_and_labels() -> None:
    queue = a_queue(
        storage={"checkpoints": {"retain": True}, "workspace": {}},
        scheduling={"spread": True},
        securityContext={"fsGroup": 1, "privileged": False},
    )
    made = plan_attempt(
        queue, a_job(numGPUs=16, secrets=[{"name": "hf", "key": "T"}, {"name": "all"}], labels={"team": "x"}), UID, 2
    )
    meta = Metadata(name="job", namespace="ns", uid=UID)
    shared = {child.key.name: child.body for child in shared_children(made, meta, 2)}
    assert set(shared) == {"job", "job-workspace", "job-checkpoints"}
    assert "ownerReferences" not in to_builtins(shared["job-checkpoints"])["metadata"], (
        "a retained claim outlives the job"
    )
    pods = {child.key.name: to_builtins(child.body) for child in pod_children(made, meta, 2)}
    assert list(pods) == ["job-rdzv-r2", "job-0-r2", "job-1-r2"]
    pod = pods["job-1-r2"]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == UID
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["labels"]["torchrun-node-index"] == "1"
    (trainer,) = pod["spec"]["containers"]
    assert trainer["resources"]["limits"] == {"cpu": "96", "memory": "512Gi", "nvidia.com/gpu": "8"}
    assert trainer["securityContext"] == {"privileged": False}
    assert pod["spec"]["securityContext"] == {"fsGroup": 1}
    assert trainer["envFrom"] == [{"secretRef": {"name": "all"}}]
    spec = json.loads(next(one["value"] for one in trainer["env"] if one["name"] == "ORCHESTRA_SPEC"))
    assert "--rdzv-endpoint=job-rdzv-r2.job:29500" in spec["launcherArgv"]
    assert "--local-addr=job-1-r2.job" in spec["launcherArgv"]
    assert spec["env"]["MASTER_ADDR"] == "job-0-r2.job"
    assert "T" not in spec["env"], "secrets are references, never values"


def test_one_node_needs_no_store_of_its_own() -> None:
    made = plan_attempt(a_queue(), a_job(numGPUs=8), UID, 1)
    children = pod_children(made, Metadata(name="job", namespace="ns", uid=UID), 1)
    assert [child.key.name for child in children] == ["job-0"]
    assert any("is_host=1" in word for word in made.nodes[0].argv)


@pytest.mark.parametrize(
    ("queue", "api", "spec"),
    [
        ({"kaiQueue": "team", "scheduling": {"priorityClassName": "p"}}, "scheduling.run.ai/v2alpha2",
         {"minMember": 2, "queue": "team", "priorityClassName": "p"}),
        ({"scheduling": {"gang": "coscheduling"}}, "scheduling.x-k8s.io/v1alpha1", {"minMember": 2, "scheduleTimeoutSeconds": 60}),
    ],
)  # fmt: skip
def test_a_gang_has_its_object_and_every_worker_joins_it(queue: dict[str, Any], api: str, spec: dict[str, Any]) -> None:
    made = plan_attempt(a_queue(**queue), a_job(numGPUs=16), UID, 1)
    meta = Metadata(name="job", namespace="ns", uid=UID)
    group = to_builtins(shared_children(made, meta, 1)[-1].body)
    store, *workers = [to_builtins(child.body) for child in pod_children(made, meta, 1)]
    assert (group["apiVersion"], group["kind"], group["spec"]) == (api, "PodGroup", spec)
    name = group["metadata"]["name"]
    for worker in workers:
        marks = {**worker["metadata"]["labels"], **worker["metadata"].get("annotations", {})}
        assert name in (marks.get("scheduling.x-k8s.io/pod-group"), marks.get("pod-group-name"))
    assert name not in json.dumps(store), "the store is outside the gang"
