"""Claims that nodes share, and storage classes that cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from builders import a_job, a_queue
from operator_parts import NOW, UID, a_pod, job, seen
from orchestra.api.base import to_builtins
from orchestra.kube.objects import Metadata
from orchestra.operator import claims
from orchestra.operator.attempt import plan_attempt, pod_children, shared_children
from orchestra.operator.decide import decide
from orchestra.plan import Plan, status

BOTH: Any = {"workspace": {"sizePerGPU": "1Gi"}, "checkpoints": {"sizePerGPU": "1Gi"}}


def planned(gpus: int = 16, **storage: Any) -> Plan:
    return plan_attempt(a_queue(storage=storage), a_job(numGPUs=gpus), UID, 1)


def cannot(name: str | None) -> tuple[str, str] | None:
    return name or "default", "it gives one node's disk"


def test_one_node_needs_no_sharing() -> None:
    made, problems = claims.adapted(planned(8, **BOTH), cannot)
    assert problems == []
    assert [volume.access_modes for volume in made.volumes] == [["ReadWriteOnce"], ["ReadWriteOnce"]]


def test_checkpoints_that_nodes_cannot_share_are_refused_with_the_way_out() -> None:
    _, problems = claims.adapted(planned(**BOTH), cannot)
    (problem,) = problems
    assert problem.path == "spec.storage.checkpoints"
    assert "cannot share a volume among 2 nodes" in str(problem)
    assert "sync.output" in str(problem)


def test_a_workspace_then_lies_on_each_node_and_a_condition_says_so() -> None:
    made, problems = claims.adapted(planned(workspace={"sizePerGPU": "1Gi"}), cannot)
    assert problems == []
    meta = Metadata(name="job", namespace="ns", uid=UID)
    assert [child.key.name for child in shared_children(made, meta, 1)] == ["job", "job"], "no claim"
    worker = to_builtins(pod_children(made, meta, 1)[-1].body)
    (folder,) = [volume for volume in worker["spec"]["volumes"] if volume["name"] == "workspace"]
    assert folder == {"name": "workspace", "emptyDir": {"sizeLimit": "8Gi"}}
    started = decide(replace(seen(job()), plan=made), NOW)
    said = next(c for c in started.status.conditions if c.type == "WorkspaceShared")
    assert (said.status, said.reason) == ("False", "NoReadWriteMany")
    later = status.with_status(job("Running", 1), conditions=started.status.conditions)
    kept = claims.as_started(planned(workspace={"sizePerGPU": "1Gi"}), later)
    assert kept.volumes[0].on_each_node, "an attempt under way stays as it was started"


def a_class(name: str, provisioner: str, **annotations: str) -> claims.StorageClass:
    named = {key.replace("_", "/", 1).replace("_", "-"): value for key, value in annotations.items()}
    return claims.StorageClass(metadata=Metadata(name=name, annotations=named), provisioner=provisioner)


@pytest.mark.parametrize(
    ("known", "shares"),
    [
        (a_class("disk", "ebs.csi.aws.com"), False),
        (a_class("nfs", "nfs.csi.k8s.io"), True),
        (a_class("disk", "ebs.csi.aws.com", torchrun_0=""), False),
        (msgspec.structs.replace(a_class("nfs", "x"), metadata=Metadata(annotations={claims.CAN_SHARE: "false"})), False),
        (msgspec.structs.replace(a_class("d", "ebs.csi.aws.com"), metadata=Metadata(annotations={claims.CAN_SHARE: "true"})), True),
    ],
)  # fmt: skip
def test_what_is_known_of_a_class(known: claims.StorageClass, shares: bool) -> None:
    assert (claims.why_not_shared(known) is None) is shares


def test_the_default_class_is_found() -> None:
    default = Metadata(name="b", annotations={"storageclass.kubernetes.io/is-default-class": "true"})
    assert claims.default_class([a_class("a", "x"), claims.StorageClass(metadata=default)]) == "b"
    assert claims.default_class([a_class("a", "x")]) is None


@pytest.mark.parametrize(
    ("message", "about_sharing"),
    [
        ('failed to provision volume with StorageClass "local": this class supports ReadWriteOnce only, not ReadWriteMany', True),
        ("Volume capabilities MULTI_NODE_MULTI_WRITER not supported. Only AccessModes[ReadWriteOnce] supported.", True),
        ("rpc error: code = ResourceExhausted desc = disk quota exceeded", False),
    ],
)  # fmt: skip
def test_a_provisioners_no_is_told_from_its_troubles(message: str, about_sharing: bool) -> None:
    assert claims.is_refusal(message) is about_sharing


def test_an_attempt_whose_claim_is_refused_is_taken_back_for_free() -> None:
    waiting = seen(job("Provisioning", 1), a_pod(0, "Pending"), a_pod(1, "Pending"))
    made = decide(replace(waiting, claims_refused=True), NOW)
    assert (made.status.phase, len(made.delete), made.status.budget) == ("Pending", 3, None)
    refused = decide(replace(waiting, claims_refused=True, plan=None, problems=tuple(claims.adapted(planned(**BOTH), cannot)[1])), NOW)  # fmt: skip
    assert (refused.status.phase, len(refused.delete)) == ("Pending", 3)
    assert any(c.type == "Valid" and c.status == "False" for c in refused.status.conditions)


def test_only_a_claim_that_an_earlier_job_of_this_name_left_is_taken() -> None:
    made = planned(**BOTH)
    labels = {"torchrun.ai/retained": "true", "torchrun-job-name": "job"}
    assert claims.is_kept(Metadata(name="job-checkpoints", labels=labels), made)
    assert not claims.is_kept(Metadata(name="job-checkpoints"), made), "a user's own claim"
    assert not claims.is_kept(Metadata(name="job-workspace", labels=labels), made)
    other = {**labels, "torchrun-job-name": "other"}
    assert not claims.is_kept(Metadata(name="job-checkpoints", labels=other), made)
