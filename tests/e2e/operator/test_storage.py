"""The seed's job on a class that shares volumes among nodes, and on one that cannot."""

from __future__ import annotations

from typing import Any

import pytest

from testbed import etcd_v2

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

SMOKE = "python -m orchestra.train.smoke --epochs 1"


def claims(site: Any) -> dict[str, str]:
    found = site.cluster.api.get(f"/api/v1/namespaces/{site.namespace}/persistentvolumeclaims")["items"]
    return {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in found}


@pytest.mark.etcd_v2
def test_the_seeds_job_meets_by_an_etcd_of_its_own_and_keeps_its_checkpoints(site: Any) -> None:
    site.kill_operator()
    site.cluster.import_image(etcd_v2.archive())
    site.start_operator("--etcd-image", etcd_v2.IMAGE)
    blocks = {"workspace": {"sizePerGPU": "10Mi"}, "checkpoints": {"sizePerGPU": "50Mi"}}
    site.queue("gpu-training-queue", gpus=2, storage=blocks)
    spec = {"jobQueue": "gpu-training-queue", "numGPUs": 4}
    distributed = {"backend": "gloo", "rdzvBackend": "etcd-v2"}
    site.job("training-job", SMOKE, **spec, distributed=distributed)
    site.wait("training-job", lambda status: "EtcdV2" in str(status.get("conditions")))
    status = site.phase("training-job", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status
    assert (status["nodes"], status["procsPerNode"], status["attempt"]) == (2, 2, 1)
    before = claims(site)
    assert set(before) == {"training-job-workspace", "training-job-checkpoints"}
    site.cluster.api.delete(site.path("torchrunjob", "training-job"))
    site.gone("training-job")
    site.until("the workspace goes with its job", lambda: set(claims(site)) == {"training-job-checkpoints"})
    site.job("training-job", SMOKE, **spec)  # another job of that name, by c10d
    status = site.phase("training-job", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status
    assert claims(site)["training-job-checkpoints"] == before["training-job-checkpoints"], "mounted, not made anew"


def test_on_a_class_that_cannot_share_checkpoints_are_refused_and_a_workspace_lies_on_each_node(site: Any) -> None:
    local = {"sizePerGPU": "10Mi", "storageClass": "local"}
    site.queue("checkpoints", storage={"workspace": local, "checkpoints": local})
    site.queue("workspace", storage={"workspace": local})
    plain = {"launcher": "none", "numNodes": 2, "gpusPerNode": 1}
    site.job("first", ["sh", "-c", "true"], jobQueue="checkpoints", **plain)
    status = site.wait("first", lambda status: "sync.output" in str(status.get("conditions")))
    (valid,) = [c for c in status["conditions"] if c["type"] == "Valid"]
    assert valid["status"] == "False"
    assert "cannot share a volume among 2 nodes" in valid["message"]
    site.until("nothing of it stays", lambda: not site.pods("first") and "first-checkpoints" not in claims(site))
    site.job("second", ["sh", "-c", "true"], jobQueue="checkpoints", **plain)
    site.wait("second", lambda status: "sync.output" in str(status.get("conditions")))
    assert not site.pods("second")
    assert "second-checkpoints" not in claims(site), "what is known now is refused before anything is created"
    site.job("third", ["sh", "-c", "echo here > $PWD/mine && cat $PWD/mine"], jobQueue="workspace", **plain)
    status = site.phase("third", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status
    assert any(c["type"] == "WorkspaceShared" and c["status"] == "False" for c in status["conditions"])
    site.job("alone", ["sh", "-c", "true"], jobQueue="checkpoints", launcher="none", numNodes=1, gpusPerNode=1)
    assert site.phase("alone", "Succeeded", "Failed")["phase"] == "Succeeded", "one node needs no sharing"
