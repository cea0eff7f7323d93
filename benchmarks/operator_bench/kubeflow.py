"""Kubeflow Trainer with JobSet as a contender, where somebody brings their programs.

`ORCHESTRA_KUBEFLOW_ASSETS` names a folder with `trainer` and `jobset` (the controllers' programs), `trainer.yaml` and
`jobset.yaml` (their manifests, rendered) and `runtime.yaml` (the ClusterTrainingRuntime `torch-distributed`).
Both run with every limit raised, which is kinder to them than what they ship with.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from testbed.api import ApiError
from testbed.control_plane import ControlPlane
from testbed.ports import free_port
from testbed.programs import programs
from testbed.waiting import wait_until

Json = dict[str, Any]
ASSETS = "ORCHESTRA_KUBEFLOW_ASSETS"
CONTROLLER_MANAGER = ("--concurrent-job-syncs=25",)
LABEL = "jobset.sigs.k8s.io/jobset-name"

_LEFT_OUT = ("Deployment", "Service", "Secret", "Certificate", "Issuer", "ServiceMonitor", "NetworkPolicy")
_FILES = ("trainer", "jobset", "trainer.yaml", "jobset.yaml", "runtime.yaml")
_JOBSET_CONFIG = """\
apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {{leaderElect: false}}
internalCertManagement: {{enable: false}}
webhook: {{port: {webhook}, host: 127.0.0.1, certDir: {certificates}}}
metrics: {{bindAddress: "127.0.0.1:{metrics}", certDir: {certificates}}}
health: {{healthProbeBindAddress: "127.0.0.1:{health}"}}
clientConnection: {{qps: 1000, burst: 2000}}
"""
_TRAINER_CONFIG = """\
apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
health: {{healthProbeBindAddress: "127.0.0.1:{health}", readinessEndpointName: readyz, livenessEndpointName: healthz}}
metrics: {{bindAddress: "127.0.0.1:{metrics}", secureServing: false}}
webhook: {{port: {webhook}, host: 127.0.0.1}}
leaderElection: {{leaderElect: false}}
controller:
  groupKindConcurrency:
    TrainJob.trainer.kubeflow.org: 5
    TrainingRuntime.trainer.kubeflow.org: 1
    ClusterTrainingRuntime.trainer.kubeflow.org: 1
certManagement: {{enable: false}}
clientConnection: {{qps: 1000, burst: 2000}}
"""


def assets() -> Path | None:
    """The folder, or nothing; says why."""
    folder = os.environ.get(ASSETS)
    if not folder:
        print(f"Kubeflow: not measured ({ASSETS} is not set)")
        return None
    missing = [name for name in _FILES if not Path(folder, name).exists()]
    if missing:
        print(f"Kubeflow: not measured ({folder} lacks {', '.join(missing)})")
        return None
    return Path(folder)


@contextlib.contextmanager
def running(plane: ControlPlane, folder: Path, work: Path) -> Iterator[dict[str, int]]:
    """Both controllers; gives their pids by name."""
    work.mkdir(parents=True, exist_ok=True)
    ports = {name: {key: free_port() for key in ("webhook", "metrics", "health")} for name in ("jobset", "trainer")}
    hooks = []
    for name, used in ports.items():
        hooks += _install(plane, folder / f"{name}.yaml", used["webhook"])
    certificates = _certificates(plane, work)
    for name, text in (("jobset", _JOBSET_CONFIG), ("trainer", _TRAINER_CONFIG)):
        (work / f"{name}-config.yaml").write_text(text.format(certificates=certificates, **ports[name]))
    accounts = {"jobset": "jobset-system", "trainer": "kubeflow-system"}
    names = {"jobset": "jobset-controller-manager", "trainer": "kubeflow-trainer-controller-manager"}
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, namespace in accounts.items():
            kubeconfig = plane.service_account_kubeconfig(namespace, names[name])
            command = [str(folder / name), f"--config={work / f'{name}-config.yaml'}", f"--kubeconfig={kubeconfig}"]
            with (work / f"{name}.log").open("wb") as log:
                environment = {**os.environ, "TMPDIR": str(certificates.parents[1])}
                started[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        for name, used in ports.items():
            wait_until(f"{name} is ready", lambda used=used: _ready(used["health"]), timeout=120)  # type: ignore[misc]
        _apply(plane, hooks)
        runtime = list(yaml.safe_load_all((folder / "runtime.yaml").read_text()))
        _patiently(lambda: _apply(plane, runtime))  # its webhook may not be reachable at once
        yield {name: process.pid for name, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.wait()
        _delete_hooks(plane, hooks)


def job(name: str, namespace: str, nodes: int) -> Json:
    """The same job in their words."""
    trainer = {
        "numNodes": nodes,
        "numProcPerNode": 8,
        "image": "example/train:1",
        "command": ["torchrun", "train.py"],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "8", "memory": "64Gi"}},
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
    }


def collection(namespace: str) -> str:
    """Path of their jobs."""
    return f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs"


def _install(plane: ControlPlane, file: Path, port: int) -> list[Json]:
    """Everything but what runs in pods; the webhooks are given back, for when their servers listen."""
    authority = base64.b64encode((plane.folder / "pki" / "ca.crt").read_bytes()).decode()
    documents = [one for one in yaml.safe_load_all(file.read_text()) if one and one["kind"] not in _LEFT_OUT]
    hooks = [one for one in documents if one["kind"].endswith("WebhookConfiguration")]
    for hook in hooks:
        for one in hook["webhooks"]:
            url = f"https://127.0.0.1:{port}{one['clientConfig']['service']['path']}"
            one["clientConfig"] = {"url": url, "caBundle": authority}
    _apply(plane, [one for one in documents if one not in hooks])
    # kubectl's own wait fails on a definition that has no condition yet.
    _patiently(lambda: _kubectl(plane, "wait", "--for=condition=Established", "--timeout=120s", "crd", "--all"))
    return hooks


def _certificates(plane: ControlPlane, work: Path) -> Path:
    """The API server's own certificate holds for this machine's loopback; both look for it under TMPDIR."""
    folder = work / "k8s-webhook-server" / "serving-certs"
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("crt", "key"):
        shutil.copy(plane.folder / "pki" / f"apiserver.{kind}", folder / f"tls.{kind}")
    return folder


def _apply(plane: ControlPlane, documents: list[Json]) -> None:
    if documents:
        _kubectl(plane, "apply", "--server-side", "--force-conflicts", "-f", "-", text=yaml.safe_dump_all(documents))


def _patiently(act: Callable[[], None], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            return act()
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def _delete_hooks(plane: ControlPlane, hooks: list[Json]) -> None:
    for hook in hooks:
        kind = hook["kind"].lower() + "s"
        with contextlib.suppress(ApiError):
            plane.admin.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}/{hook['metadata']['name']}")


def _kubectl(plane: ControlPlane, *words: str, text: str | None = None) -> None:
    command = [str(programs("kubectl")["kubectl"]), f"--kubeconfig={plane.admin_kubeconfig}", *words]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
