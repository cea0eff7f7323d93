"""`why` and `doctor` on two real nodes: the cluster's own messages, not ours."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from cluster_engine import OnCluster
from orchestra.api.engine import Cause
from orchestra.cluster.engine import KubernetesEngine
from orchestra.kube.config import load_kubeconfig

pytestmark = pytest.mark.timeout(600)
PATIENCE = 200.0


def cause(engine: KubernetesEngine, job: str, about: str, words: str) -> Cause:
    """The first cause, once it is about this and says that; never another kind of wrong guess before it."""
    end = time.monotonic() + PATIENCE
    while True:
        causes = engine.why(job)
        found = [one for one in causes if one.about == about and words in one.message]
        if found:
            return found[0]
        assert time.monotonic() < end, causes
        time.sleep(0.3)


def test_each_reason_why_a_job_does_not_run(site: OnCluster) -> None:
    def job(name: str, queue: str = "queue", **spec: Any) -> None:
        body = {
            "apiVersion": "torchrun.ai/v1alpha1",
            "kind": "TorchrunJob",
            "metadata": {"name": name},
            "spec": {"jobQueue": queue, "command": [sys.executable, "-c", "pass"], "launcher": "none"} | spec,
        }
        site.cluster.api.create(site.path("torchrunjobs"), body)

    site.queue("large", nodeResources={"gpus": 12, "memory": "1Gi"})
    job("lonely", "quue")
    job("nowhere", "large", numNodes=1)
    job("unpulled", image="127.0.0.1:1/no/image:1", overrides={"imagePullPolicy": "IfNotPresent"})
    job("secretive", secrets=[{"name": "absent", "key": "token"}])
    job("unbound", storage={"checkpoints": {"storageClass": "nowhere"}})
    job("broken", command=[sys.executable, "-c", "raise ValueError('rank zero is unwell')"], restartPolicy="Never")

    user, admin = site.engine, KubernetesEngine(load_kubeconfig(site.cluster.kubeconfig), namespace=site.namespace)
    assert "did you mean queue?" in cause(user, "lonely", "queue", "there is no TorchrunQueue quue").mend
    facts = cause(admin, "nowhere", "nodes", "Insufficient nvidia.com/gpu").message
    assert "n0 8 of 8 GPUs free" in facts
    assert "each asks for 12 GPUs" in facts
    assert "you may not read nodes" in cause(user, "nowhere", "nodes", "Insufficient nvidia.com/gpu").message
    assert "127.0.0.1:1/no/image:1" in cause(user, "unpulled", "image", "connection refused").message
    missing = cause(user, "secretive", "container", 'secret "absent" not found')
    assert missing.mend == f"kubectl -n {site.namespace} create secret generic absent --from-literal=KEY=VALUE"
    unbound = cause(user, "unbound", "volumes", '"nowhere" not found').message
    assert "claim unbound-checkpoints (ReadWriteOnce on class nowhere) is Pending" in unbound
    assert "logs broken" in cause(user, "broken", "rank", "rank zero is unwell").mend

    shown = site.cli("why", "secretive", "-n", site.namespace, program=("kubectl", "torchrun"))
    assert (shown.returncode, "mend: kubectl -n" in shown.stdout) == (0, True), shown
    found = {one.about: one for one in admin.doctor()}
    assert (found["operator"].state, found["gpus"].message) == ("ok", "16 on 2 of 2 nodes"), found
    assert "default shared" in found["storage"].message
    admin.close()
