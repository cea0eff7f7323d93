"""The operator on the two real nodes: its own process, its own ServiceAccount, its generated rights and no more."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gated_training import LOSS, OPTIONS
from testbed import torch_mounts
from testbed.cluster import Cluster
from testbed.control_plane import ControlPlane
from testbed.crds import install_crds
from testbed.images import HOST
from testbed.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
Json = dict[str, Any]


class Site:
    """The cluster with our operator, seen from one namespace."""

    def __init__(self, cluster: Cluster, namespace: str, logs: Path) -> None:
        self.cluster, self.namespace, self._logs = cluster, namespace, logs
        self._process: subprocess.Popen[bytes] | None = None

    def path(self, kind: str, name: str = "") -> str:
        """Path of our own objects."""
        base = f"/apis/torchrun.ai/v1alpha1/namespaces/{self.namespace}/{kind}s"
        return f"{base}/{name}" if name else base

    def start_operator(self, *options: str) -> None:
        """Starts the operator's process, as its ServiceAccount."""
        plane: ControlPlane = self.cluster.control_plane
        kubeconfig = plane.service_account_kubeconfig("orchestra-system", "orchestra-operator")
        words = [sys.executable, "-m", "orchestra.operator", "--kubeconfig", str(kubeconfig), *options]
        with (self._logs / "operator.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)

    def kill_operator(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def operator_log(self) -> str:
        """What the operator said."""
        return (self._logs / "operator.log").read_text()

    def queue(self, name: str = "queue", gpus: int = 2, **spec: Any) -> None:
        """A queue whose pods borrow this machine's Python and torch."""
        lent = torch_mounts(ROOT / "src")
        volumes = [volume for volume in lent.volumes if volume["name"] != "shm"]
        mounts = [mount for mount in lent.mounts if mount["name"] != "shm"]
        template = {"spec": {"volumes": volumes, "containers": [{"name": "trainer", "volumeMounts": mounts}]}}
        made: Json = {
            "nodeResources": {"gpus": gpus, "memory": "6Gi"},
            "image": HOST,
            "imagePullPolicy": "Never",
            "env": [{"name": "PATH", "value": f"{sys.prefix}/bin:/usr/bin:/bin"}, {"name": "HOME", "value": "/tmp"}],
            "storage": {"checkpoints": {"sizePerGPU": "100Mi", "retain": False}},
            "distributed": {"backend": "gloo"},
            "podTemplate": template,
        }
        body = {
            "apiVersion": "torchrun.ai/v1alpha1",
            "kind": "TorchrunQueue",
            "metadata": {"name": name},
            "spec": made | spec,
        }
        self.cluster.api.create(self.path("torchrunqueue"), body)

    def job(self, name: str, command: Any, **spec: Any) -> None:
        """A job of two nodes with one process each, unless said otherwise."""
        size = {} if "numGPUs" in spec else {"numNodes": 2, "gpusPerNode": 1}
        spec = {"jobQueue": "queue", "command": command} | size | spec
        body = {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunJob", "metadata": {"name": name}, "spec": spec}
        self.cluster.api.create(self.path("torchrunjob"), body)

    def status(self, name: str) -> Json:
        """The job's status."""
        found: Json = self.cluster.api.get(self.path("torchrunjob", name)).get("status") or {}
        return found

    def wait(self, name: str, until: Callable[[Json], object], timeout: float = 200.0) -> Json:
        """The status once `until` holds."""
        end = time.monotonic() + timeout
        while True:
            status = self.status(name)
            if until(status):
                return status
            if time.monotonic() > end:
                raise TimeoutError(f"{name} did not get there: {status}\n{self.operator_log()[-3000:]}")
            time.sleep(0.2)

    def phase(self, name: str, *phases: str, timeout: float = 200.0) -> Json:
        """The status once the job is in one of these phases."""
        return self.wait(name, lambda status: status.get("phase") in phases, timeout)

    def pods(self, name: str) -> list[Json]:
        """The job's worker pods."""
        selector = f"torchrun-job-name={name},torchrun.ai/role=worker"
        found: list[Json] = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=selector)[
            "items"
        ]
        return found

    def until(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for something that is not in a job's status."""
        wait_until(what, condition, timeout=120, interval=0.2)

    def gone(self, name: str) -> None:
        """Wait until a deleted job and its pods are gone."""
        self.until(f"{name} is gone", lambda: self.cluster.api.find(self.path("torchrunjob", name)) is None)
        self.until(f"the pods of {name} are gone", lambda: not self.pods(name))

    def log(self, pod: str) -> str:
        """A pod's log."""
        return self.cluster.kubectl("-n", self.namespace, "logs", pod, check=False)


@pytest.fixture
def site(breakable_cluster: Cluster, cluster_namespace: str, tmp_path: Path) -> Iterator[Site]:
    """The operator, running."""
    install_crds(breakable_cluster.api, ROOT / "config" / "crd" / "bases")
    breakable_cluster.kubectl("apply", "-f", str(ROOT / "config" / "rbac" / "role.yaml"))
    made = Site(breakable_cluster, cluster_namespace, tmp_path)
    made.start_operator()
    yield made
    made.kill_operator()
    for job in breakable_cluster.api.get(made.path("torchrunjob"))["items"]:
        breakable_cluster.api.delete(made.path("torchrunjob", job["metadata"]["name"]))
    for queue in breakable_cluster.api.get(made.path("torchrunqueue"))["items"]:  # nobody is left who would let it go
        breakable_cluster.api.patch(
            made.path("torchrunqueue", queue["metadata"]["name"]), {"metadata": {"finalizers": None}}
        )


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The final loss when nothing happens: one process, on this machine, without any engine."""
    out = tmp_path_factory.mktemp("undisturbed")
    words = [sys.executable, "-m", "orchestra.train.smoke", *OPTIONS, "--output-dir", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(LOSS.findall(done.stdout)[-1][1])


def verbatim(path: Path) -> list[Json]:
    """The documents of a file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]
