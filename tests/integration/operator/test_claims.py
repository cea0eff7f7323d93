"""Claims: what a class refuses is learned; what an earlier job kept is mounted again. The test plays the provisioner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from operator_desk import Desk
from testbed.fake_nodes import set_pod_phase
from testbed.waiting import wait_until

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


@pytest.fixture
def storage_class(desk: Desk) -> Iterator[str]:
    """A class of which nobody knows that it gives one node's disk."""
    name = f"one-node-{desk.namespace}"
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    desk.api.create(CLASSES, {**body, "provisioner": "example.com/disk"})
    yield name
    desk.api.delete(f"{CLASSES}/{name}")


def refuse(desk: Desk, claim: str) -> None:
    """As real provisioners do: a warning event, and the claim stays Pending."""
    wait_until(f"{claim} is there", lambda: claim in desk.names("persistentvolumeclaims"))
    found = desk.api.get(desk.core("persistentvolumeclaims", claim))["metadata"]
    about = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim, "namespace": desk.namespace}
    event: dict[str, Any] = {"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "refused."}}
    words = "failed to provision volume: only ReadWriteOnce is supported, not ReadWriteMany"
    event |= {"involvedObject": {**about, "uid": found["uid"]}, "type": "Warning", "reason": "ProvisioningFailed"}
    desk.api.create(desk.core("events"), {**event, "message": words, "source": {"component": "example.com/disk"}})


def test_checkpoints_are_refused_once_their_class_has_said_no_and_then_before_anything_is_made(
    desk: Desk, storage_class: str
) -> None:
    block = {"sizePerGPU": "1Mi", "storageClass": storage_class}
    desk.queue(storage={"checkpoints": block})
    desk.job("first")
    refuse(desk, "first-checkpoints")
    said = desk.condition("Valid", "first", status="False")
    assert "cannot share a volume among 2 nodes (ReadWriteMany)" in said["message"]
    assert "sync.output" in said["message"]
    wait_until("nothing of it stays", lambda: desk.names("pods") == [] == desk.names("persistentvolumeclaims"))
    desk.job("second")
    desk.condition("Valid", "second", status="False")
    assert desk.names("pods") == [] == desk.names("persistentvolumeclaims")
    assert desk.status("second").get("attempt", 0) == 0


def test_a_workspace_lies_on_each_node_instead(desk: Desk, storage_class: str) -> None:
    desk.queue(storage={"workspace": {"sizePerGPU": "1Mi", "storageClass": storage_class}})
    desk.job()
    refuse(desk, "job-workspace")
    desk.condition("WorkspaceShared", status="False", reason="NoReadWriteMany")
    wait_until("its second attempt", lambda: "job-1-r2" in desk.names("pods"))
    (pod,) = [pod for pod in desk.workers() if pod["metadata"]["name"] == "job-1-r2"]
    (folder,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "workspace"]
    assert "emptyDir" in folder
    assert desk.status().get("budget", {}).get("freeRetries", 0) == 0


def test_a_kept_claim_is_mounted_by_the_next_job_of_that_name_and_owned_by_nobody(desk: Desk) -> None:
    desk.queue(storage={"checkpoints": {"sizePerGPU": "1Mi"}})
    desk.job(numNodes=1)
    wait_until("its pod is there", lambda: desk.names("pods") == ["job-0"])
    before = desk.api.get(desk.core("persistentvolumeclaims", "job-checkpoints"))["metadata"]
    assert before["labels"]["torchrun.ai/retained"] == "true"
    desk.forget()
    wait_until("its pod is gone", lambda: desk.names("pods") == [])
    mount = {"name": "kept", "persistentVolumeClaim": {"claimName": "job-checkpoints"}}
    spec = {"containers": [{"name": "main", "image": "none"}], "volumes": [mount]}
    other = {"name": "other-0", "labels": {"torchrun-job-name": "other", "torchrun.ai/role": "worker"}}
    desk.api.create(desk.core("pods"), {"apiVersion": "v1", "kind": "Pod", "metadata": other, "spec": spec})
    desk.job(numNodes=1)
    said = desk.condition("Phase", reason="ClaimInUse")
    assert "other-0 has mounted it" in said["message"]
    assert desk.names("pods") == ["other-0"]
    desk.api.delete(desk.core("pods", "other-0"), grace_seconds=0)
    wait_until("it mounts what was kept", lambda: desk.names("pods") == ["job-0"], timeout=120)
    after = desk.api.get(desk.core("persistentvolumeclaims", "job-checkpoints"))["metadata"]
    assert after["uid"] == before["uid"]
    assert "ownerReferences" not in after


def test_a_shared_workspace_is_filled_before_the_workers_start_and_anew_for_other_code(desk: Desk) -> None:
    desk.queue(storage={"workspace": {"sizePerGPU": "1Mi"}})
    desk.job(workspace={"snapshot": "a" * 64})
    wait_until("the pod that fills it", lambda: desk.names("pods") == ["job-sync-0"])
    assert desk.names("persistentvolumeclaims") == ["job-workspace"]
    desk.wait(lambda told: told.get("phase") == "Syncing")
    assert "bringing snapshot aaaaaaaaaaaa into claim job-workspace" in desk.condition("Phase")["message"]
    filling = desk.api.get(desk.core("pods", "job-sync-0"))
    set_pod_phase(desk.api, desk.namespace, "job-sync-0", "Succeeded")
    wait_until("its workers", lambda: {"job-0", "job-1"} <= set(desk.names("pods")))
    assert desk.api.get(desk.core("pods", "job-sync-0"))["metadata"]["uid"] == filling["metadata"]["uid"], "it stays"
    changed = {"metadata": {"annotations": {"torchrun.ai/restart-attempt": "1"}},
               "spec": {"workspace": {"snapshot": "b" * 64}}}  # fmt: skip
    desk.api.patch(desk.path("torchrunjob", "job"), changed)
    wait_until("another pod fills it", lambda: _brought(desk) == "snapshot bbbbbbbbbbbb")
    set_pod_phase(desk.api, desk.namespace, "job-sync-0", "Succeeded")
    wait_until("its second attempt", lambda: "job-1-r2" in desk.names("pods"))
    assert not desk.status().get("restarts"), "asked for: it costs no restart"


def _brought(desk: Desk) -> str:
    found = desk.api.find(desk.core("pods", "job-sync-0"))
    return str(found["metadata"]["annotations"]["torchrun.ai/brought"]) if found else ""
