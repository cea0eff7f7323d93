"""The operator as a process on a control plane without nodes: the test plays the kubelet."""

from __future__ import annotations

import contextlib
import datetime
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from testbed.api import Json
from testbed.control_plane import ControlPlane
from testbed.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 120.0


class Operator:
    """One process, under the generated Role of config/rbac and nothing else."""

    def __init__(self, plane: ControlPlane, folder: Path, *arguments: str) -> None:
        self.plane, self.admin = plane, plane.admin
        self.log_file = folder / "operator.log"
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; a second time after `kill`."""
        kubeconfig = self.plane.service_account_kubeconfig("orchestra-system", "orchestra-operator", seconds=7200)
        words = [sys.executable, "-m", "orchestra.operator", "--kubeconfig", str(kubeconfig), *self._arguments]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it still lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of a process that ended by itself."""
        return self._process.poll() if self._process is not None else None

    def log(self) -> str:
        """All it said."""
        return self.log_file.read_text(errors="replace")


def install(plane: ControlPlane) -> None:
    """The CRDs and the generated rights."""
    plane.install_crds(ROOT / "config" / "crd" / "bases")
    for body in yaml.safe_load_all((ROOT / "config" / "rbac" / "role.yaml").read_text()):
        group, _, version = body["apiVersion"].rpartition("/")
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        namespace = body["metadata"].get("namespace")
        within = f"/namespaces/{namespace}" if namespace else ""
        plane.admin.apply(f"{root}{within}/{body['kind'].lower()}s/{body['metadata']['name']}", body)


@contextlib.contextmanager
def operator(plane: ControlPlane, folder: Path, *arguments: str) -> Iterator[Operator]:
    """Installed and running; at its end the queues of all namespaces may go without it."""
    install(plane)
    made = Operator(plane, folder, *arguments)
    made.start()
    try:
        yield made
    finally:
        made.kill()
        for queue in plane.admin.get("/apis/torchrun.ai/v1alpha1/torchrunqueues")["items"]:
            meta = queue["metadata"]
            if meta.get("finalizers"):
                plane.admin.patch(
                    path("torchrunqueue", meta["namespace"], meta["name"]), {"metadata": {"finalizers": None}}
                )


def path(kind: str, namespace: str, name: str = "") -> str:
    """Path of our own objects."""
    base = f"/apis/torchrun.ai/v1alpha1/namespaces/{namespace}/{kind}s"
    return f"{base}/{name}" if name else base


class Site:
    """One namespace with the operator at work."""

    def __init__(self, running: Operator, namespace: str) -> None:
        self.operator, self.admin, self.namespace = running, running.admin, namespace

    def queue(self, name: str = "queue", *, namespace: str = "", **spec: Any) -> Json:
        """A queue of 8-GPU nodes, unless said otherwise."""
        made = {"image": "trainer:1", "nodeResources": {"gpus": 8, "cpus": 64, "memory": "512Gi"}} | spec
        body = {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunQueue", "metadata": {"name": name}, "spec": made}
        return self.admin.create(path("torchrunqueue", namespace or self.namespace), body)

    def job(self, name: str, gpus: int = 8, *, queue: str = "queue", namespace: str = "", **spec: Any) -> Json:
        """A job of so many GPUs."""
        size = {} if "numNodes" in spec else {"numGPUs": gpus}
        made = {"jobQueue": queue, "command": "python train.py"} | size | spec
        body = {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunJob", "metadata": {"name": name}, "spec": made}
        return self.admin.create(path("torchrunjob", namespace or self.namespace), body)

    def status(self, kind: str, name: str, namespace: str = "") -> Json:
        """Its status, empty until there is one."""
        found = self.admin.find(path(kind, namespace or self.namespace, name)) or {}
        status: Json = found.get("status") or {}
        return status

    def phase(self, name: str, phase: str, namespace: str = "") -> Json:
        """The job's status once it is in a phase."""
        return self.until("torchrunjob", name, lambda status: status.get("phase") == phase, namespace)

    def until(self, kind: str, name: str, holds: Any, namespace: str = "") -> Json:
        """The status once something holds."""
        last: Json = {}

        def look() -> Json | None:
            nonlocal last
            last = self.status(kind, name, namespace)
            return last if holds(last) else None

        try:
            return wait_until(f"{kind} {name}", look, timeout=PATIENCE, interval=0.1) or {}
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {last}\n{self.operator.log()[-4000:]}") from None

    def condition(self, kind: str, name: str, what: str, status: str, reason: str = "", namespace: str = "") -> Json:
        """The condition once it has this status (and reason)."""

        def holds(found: Json) -> bool:
            one = condition(found, what)
            return one.get("status") == status and reason in ("", one.get("reason"))

        return condition(self.until(kind, name, holds, namespace), what)

    def pods(self, job: str, namespace: str = "") -> list[Json]:
        """The job's workers."""
        selector = f"torchrun-job-name={job},torchrun.ai/role=worker"
        found: list[Json] = self.admin.get(
            f"/api/v1/namespaces/{namespace or self.namespace}/pods", labelSelector=selector
        )["items"]
        return found

    def run(self, job: str) -> None:
        """Its workers run."""
        for pod in wait_until(f"{job} has pods", lambda: self.pods(job), timeout=PATIENCE, interval=0.1):
            where = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
            self.admin.patch(where, {"status": {"phase": "Running"}})

    def finish(self, job: str, namespace: str = "") -> None:
        """Its workers end well."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for pod in wait_until(f"{job} has pods", lambda: self.pods(job, namespace), timeout=PATIENCE, interval=0.1):
            meta = pod["metadata"]
            ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
            container = {
                "name": "trainer",
                "image": "i",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": ended,
            }
            status = {"phase": "Succeeded", "containerStatuses": [container]}
            self.admin.patch(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status", {"status": status})


def condition(status: Json, what: str) -> Json:
    """A condition by its type, empty where there is none."""
    return next((one for one in status.get("conditions", []) if one["type"] == what), {})
