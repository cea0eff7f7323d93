"""The pod that fills a shared workspace: when there is one, what is said of it, and what comes after."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from builders import a_cpu_queue, a_job
from orchestra.kube.objects import Metadata
from orchestra.kube.pods import ContainerState, ContainerStatus, PodStatus, Terminated
from orchestra.operator.attempt import filling_children, plan_attempt, shared_children
from orchestra.operator.decide import decide
from orchestra.operator.decision import Observation
from orchestra.operator.filling import BROUGHT, what
from orchestra.operator.kinds import PodObject
from orchestra.operator.moving import fills_claim, own_workspace
from orchestra.operator.pods import PodOptions, worker_pod
from orchestra.plan import Plan

ID = "a" * 64
SHARED = {"workspace": {"enabled": True, "sizePerGPU": "1Gi"}}
NOW = 1_000_000.0


def a_plan(storage: dict[str, Any] = SHARED, **spec: Any) -> Plan:
    given: dict[str, Any] = {"workspace": {"snapshot": ID}, "numNodes": 2} | spec
    return plan_attempt(a_cpu_queue(storage=storage), a_job("train", **given), "uid", 1)


def seen(plan: Plan, pod: PodObject | None = None, **spec: Any) -> Observation:
    return Observation(
        job=a_job("train", **spec), plan=plan, problems=(), queue_missing=False, pods=(), progress=None, sync_pod=pod
    )


def a_pod(phase: str, brought: str, message: str = "", code: int = 0, finished: str | None = None) -> PodObject:
    ended = (
        Terminated(exit_code=code, message=message, finished_at=finished) if phase in ("Failed", "Succeeded") else None
    )
    state = ContainerStatus(name="sync", state=ContainerState(terminated=ended))
    meta = Metadata(name="train-sync-0", annotations={BROUGHT: brought}, labels={"torchrun.ai/role": "sync"})
    return PodObject(meta, status=PodStatus(phase=phase, container_statuses=(state,)))


@pytest.mark.parametrize(
    ("plan", "shared", "own"),
    [
        (a_plan(), True, False),
        (a_plan(numNodes=1), False, False),
        (a_plan(storage={}), False, True),
        (a_plan(storage={"workspace": {"accessModes": ["ReadWriteOnce"]}}), False, True),
        (a_plan(storage={"workspace": {"source": "existing", "claimName": "code"}}, workspace=None), False, False),
        (a_plan(workspace={"source": "git", "url": "https://host/repo", "ref": "v1"}), True, False),
        (a_plan(workspace=None, sync={"code": "s3://bucket/code"}), True, False),
    ],
)
def test_only_a_claim_that_nodes_share_is_filled_by_a_pod_of_its_own(plan: Plan, shared: bool, own: bool) -> None:
    assert (fills_claim(plan), own_workspace(plan)) == (shared, own)


def test_the_job_is_syncing_until_the_claim_is_filled() -> None:
    plan = a_plan()
    first = decide(seen(plan), NOW)
    assert (first.status.phase, first.fill, first.create) == ("Syncing", True, False)
    waiting = decide(seen(plan, a_pod("Running", what(plan))), NOW)
    assert (waiting.status.phase, waiting.fill, waiting.create) == ("Syncing", False, False)
    filled = decide(seen(plan, a_pod("Succeeded", what(plan))), NOW)
    assert (filled.status.phase, filled.create, filled.delete) == ("Provisioning", True, ())


def test_other_code_is_brought_by_another_pod() -> None:
    plan, old = a_plan(), a_pod("Succeeded", "snapshot 000000000000")
    made = decide(seen(plan, old), NOW)
    assert (made.status.phase, made.delete, made.create) == ("Syncing", (old,), False)


def test_what_will_never_be_there_fails_the_job_and_the_rest_is_tried_again() -> None:
    plan = a_plan()
    gone = decide(seen(plan, a_pod("Failed", what(plan), "x\nerror: no such branch\n", 3)), NOW)
    assert gone.status.phase == "Failed"
    assert "no such branch" in gone.events[0].message
    away = a_pod("Failed", what(plan), "error: the store does not answer", 1, finished="1970-01-01T00:00:00Z")
    again = decide(seen(plan, away), NOW)
    assert (again.status.phase, again.delete) == ("Syncing", (away,))
    assert "the store does not answer" in again.events[0].message


def test_a_pod_that_fills_for_nobody_goes() -> None:
    plan = a_plan()
    pod = a_pod("Running", what(plan))
    suspended = replace(seen(plan, pod, suspend=True))
    assert pod in decide(suspended, NOW).delete


def test_workers_mount_the_claim_and_only_follow() -> None:
    plan = a_plan()
    spec = worker_pod(plan, 1, 1, "uid", {}, PodOptions())["spec"]
    (follow,) = spec["initContainers"]
    orders = json.loads(next(one["value"] for one in follow["env"] if one["name"] == "ORCHESTRA_ORDERS"))
    assert (follow["name"], orders["sharedCode"], orders["node"]) == ("orchestra-code", True, 1)
    claim = {"name": "workspace", "persistentVolumeClaim": {"claimName": "train-workspace"}}
    assert claim in spec["volumes"]
    assert {"name": "workspace", "mountPath": "/app"} in spec["containers"][0]["volumeMounts"]


def test_what_a_template_says_of_our_containers_is_no_container() -> None:
    template = {"spec": {"initContainers": [{"name": "orchestra-fetch", "volumeMounts": []}, {"name": "theirs"}]}}
    queue = a_cpu_queue(storage=SHARED, podTemplate=template)
    plan = plan_attempt(queue, a_job("train", workspace={"snapshot": ID}, numNodes=2), "uid", 1)
    spec = worker_pod(plan, 0, 1, "uid", {}, PodOptions())["spec"]
    assert {one["name"] for one in spec["initContainers"]} == {"theirs", "orchestra-code"}
    plain = plan_attempt(a_cpu_queue(podTemplate=template), a_job("train"), "uid", 1)
    assert [one["name"] for one in worker_pod(plain, 0, 1, "uid", {})["spec"]["initContainers"]] == ["theirs"]


def test_the_pod_goes_where_workers_may_go_and_is_named_as_people_know_it() -> None:
    scheduling = {"nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "gpu"}], "scheduler": "kai-scheduler"}
    queue = a_cpu_queue(storage=SHARED, scheduling=scheduling)
    git = {"source": "git", "url": "https://host/repo", "secretName": "git-keys"}
    plan = plan_attempt(queue, a_job("train", workspace=git, numNodes=2), "uid", 1)
    job = Metadata(name="train", namespace="space", uid="uid")
    claim, pod = filling_children(plan, job, PodOptions(image="orchestra:1"))
    assert (claim.key.name, pod.key.name) == ("train-workspace", "train-sync-0")
    assert claim.key in [one.key for one in shared_children(plan, job, 1)]
    spec = pod.body["spec"]
    assert spec["nodeSelector"] == {"gpu": "h100"}
    assert spec["tolerations"][0]["key"] == "gpu"
    assert "schedulerName" not in spec
    (container,) = spec["containers"]
    assert {"secretRef": {"name": "git-keys"}} in container["envFrom"]
    assert "git-keys" not in json.dumps(container["env"])
