"""The operator as people install it: two pods of a real image, `restricted` everywhere, by config/ and by the chart."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestra.operator.manifests import IMAGE
from testbed.cluster import Cluster
from testbed.helm import helm
from testbed.python_image import python_image
from testbed.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "orchestra"
SYSTEM = "/api/v1/namespaces/orchestra-system"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/orchestra-system/leases/orchestra-operator"
STRICT = {"pod-security.kubernetes.io/enforce": "restricted"}
SECURED = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
Json = dict[str, Any]


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> str:
    """Our package and what the operator needs, without torch, as one layer on both nodes."""
    archive = python_image(
        f"docker.io/library/{IMAGE}",
        ["aiohttp", "msgspec", "PyYAML"],
        {"orchestra": ROOT / "src" / "orchestra"},
        scripts={"orchestra": "orchestra.cli.main:main"},
        entrypoint=["orchestra"],
        user="65532:65532",
    )
    cluster.import_image(archive)
    return IMAGE


class Installed:
    """A cluster into which the operator is being installed."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.api, self.namespace = cluster, cluster.api, namespace

    def orchestra(self, *words: str) -> str:
        environment = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)}
        command = [sys.executable, "-m", "orchestra.cli.main", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def operators(self) -> dict[str, Json]:
        """The operator's pods that are ready and stay, by name."""
        found = self.api.get(f"{SYSTEM}/pods", labelSelector="app.kubernetes.io/component=operator")["items"]
        return {one["metadata"]["name"]: one for one in found if _is_ready(one)}

    def leader(self) -> str:
        """The pod that leads; nothing while nobody does."""
        lease = self.api.find(LEASE) or {}
        holder: str = lease.get("spec", {}).get("holderIdentity") or ""
        return holder.rpartition("-")[0]

    def train_while_the_leader_dies(self, image: str) -> None:
        """A job of two pods in a restricted namespace; the leader's pod is deleted as soon as they run."""
        base = f"/apis/torchrun.ai/v1alpha1/namespaces/{self.namespace}"
        queue = {
            "nodeResources": {"gpus": 1},
            "image": image,
            "imagePullPolicy": "Never",
            "securityContext": SECURED,
            "storage": {"workspace": {"enabled": False}, "checkpoints": {"enabled": False}},
        }
        job = {
            "jobQueue": "strict",
            "numNodes": 2,
            "gpusPerNode": 1,
            "launcher": "none",
            "distributed": {"rdzvBackend": "static"},  # no store: this image has no torch
            "command": ["python3", "-c", "import time; time.sleep(8); print('well done')"],
            "restartPolicy": "Never",
        }
        self.api.create(f"{base}/torchrunqueues", _object("TorchrunQueue", "strict", queue))
        self.api.create(f"{base}/torchrunjobs", _object("TorchrunJob", "train", job))

        def status() -> Json:
            return self.api.get(f"{base}/torchrunjobs/train").get("status") or {}

        wait_until("the job runs", lambda: status().get("phase") == "Running", timeout=200)
        workers = self._workers()
        leader = self.leader()
        assert leader in self.operators()
        self.api.delete(f"{SYSTEM}/pods/{leader}")
        wait_until("another one leads", lambda: self.leader() not in ("", leader), timeout=120)
        wait_until("the job ends", lambda: status().get("phase") in ("Succeeded", "Failed"), timeout=200)
        assert (status()["phase"], status()["attempt"]) == ("Succeeded", 1), status()
        assert self._workers() == workers, "the same two pods from start to end"
        for pod in workers:
            assert "well done" in self.cluster.kubectl("-n", self.namespace, "logs", pod)
        wait_until("two operators again", lambda: len(self.operators()) == 2, timeout=200)

    def _workers(self) -> dict[str, str]:
        selector = "torchrun-job-name=train,torchrun.ai/role=worker"
        found = self.api.get(f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=selector)["items"]
        return {one["metadata"]["name"]: one["metadata"]["uid"] for one in found}


@pytest.fixture
def site(cluster: Cluster, cluster_namespace: str) -> Iterator[Installed]:
    """A namespace that enforces `restricted`, and a cluster without our operator, before and after."""
    cluster.api.patch(f"/api/v1/namespaces/{cluster_namespace}", {"metadata": {"labels": STRICT}})
    made = Installed(cluster, cluster_namespace)
    yield made
    made.orchestra("uninstall", "--force")


def test_config_runs_two_operators_in_any_order_and_one_may_die(site: Installed, image: str) -> None:
    for part in ("deployment.yaml", "rbac/role.yaml", "crd/bases/"):
        site.cluster.kubectl("apply", "-f", str(ROOT / "config" / part))
    assert "2 of 2 operators are ready" in site.orchestra("install")
    spread = {pod["spec"]["nodeName"] for pod in site.operators().values()}
    assert spread == {"n0", "n1"}
    site.train_while_the_leader_dies(image)


@pytest.mark.helm
def test_the_chart_runs_two_operators_and_one_may_die(site: Installed, image: str, tmp_path: Path) -> None:
    place = ["-n", "orchestra-system"]
    # Definitions and rights may be there from another installation: helm must be told that it may have them.
    options = ["--create-namespace", "--take-ownership", "--wait", "--timeout", "200s"]
    where = {"kubeconfig": site.cluster.kubeconfig, "home": tmp_path}
    helm("install", "orchestra", CHART, *place, *options, **where)
    site.api.patch(SYSTEM, {"metadata": {"labels": STRICT}})
    assert len(site.operators()) == 2
    site.train_while_the_leader_dies(image)
    helm("uninstall", "orchestra", *place, "--wait", **where)
    assert not site.operators()
    definitions = site.cluster.kubectl("get", "crds", "-o", "name")
    assert "torchrunjobs.torchrun.ai" in definitions
    assert "torchrunqueues.torchrun.ai" in definitions


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or []
    staying = "deletionTimestamp" not in pod["metadata"]
    return staying and any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _object(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "torchrun.ai/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
