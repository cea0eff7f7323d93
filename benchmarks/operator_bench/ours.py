"""Our operator as a contender: its process, its rights, its jobs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from testbed.control_plane import ControlPlane
from testbed.ports import free_port
from testbed.waiting import wait_until

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["torchrun", "train.py"]


def install(plane: ControlPlane) -> None:
    """Definitions and rights, as config/ has them."""
    plane.install_crds(ROOT / "config" / "crd" / "bases")
    for document in yaml.safe_load_all((ROOT / "config" / "rbac" / "role.yaml").read_text()):
        plane.admin.apply(_path(document), document)


@contextlib.contextmanager
def running(plane: ControlPlane, log: Path, *words: str) -> Iterator[tuple[int, int]]:
    """The operator under its own account; gives its pid and the port of its pages."""
    kubeconfig = plane.service_account_kubeconfig("orchestra-system", "orchestra-operator")
    port = free_port()
    command = [sys.executable, "-m", "orchestra.operator", "--kubeconfig", str(kubeconfig)]
    command += [f"--health=127.0.0.1:{port}", *words]
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        wait_until("the operator is ready", lambda: _ready(port), timeout=120)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait()


def queue() -> Json:
    """A queue of nodes with eight GPUs."""
    spec = {"nodeResources": {"gpus": 8, "cpus": 8, "memory": "64Gi"}, "image": "example/train:1"}
    return _object("TorchrunQueue", "queue", spec)


def job(name: str, nodes: int) -> Json:
    """A job of so many pods with eight processes each."""
    spec = {"jobQueue": "queue", "numNodes": nodes, "gpusPerNode": 8, "command": COMMAND}
    return _object("TorchrunJob", name, spec)


def collection(namespace: str, kind: str = "torchrunjobs") -> str:
    """Path of our objects."""
    return f"/apis/torchrun.ai/v1alpha1/namespaces/{namespace}/{kind}"


def is_worker(labels: dict[str, str]) -> bool:
    """Whether a pod is one of the asked-for; the rendezvous store comes on top."""
    return labels.get("torchrun.ai/role") == "worker"


def _object(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "torchrun.ai/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _ready(port: int) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _path(document: Json) -> str:
    version, kind, metadata = document["apiVersion"], document["kind"].lower() + "s", document["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    inside = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{inside}/{kind}/{metadata['name']}"
