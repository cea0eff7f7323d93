"""The kubernetes engine with what tests need around it: our operator's process, a namespace, a user with few rights."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from builders import a_job
from orchestra.api.engine import EngineError, LogQuery, Submission
from orchestra.api.job import TorchrunJob
from orchestra.cluster.engine import KubernetesEngine
from orchestra.kube.config import load_kubeconfig
from orchestra.plan.status import at_rest, status_of
from testbed import torch_mounts
from testbed.api import ApiError
from testbed.cluster import Cluster
from testbed.crds import install_crds
from testbed.images import HOST
from testbed.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
COOPERATIVE = ROOT / "tests" / "integration" / "local" / "cooperative.py"
USER = "alice"
TIMEOUT = 240.0
Json = dict[str, Any]


class OperatorProcess:
    """Our operator as a process of this machine, with its generated rights."""

    def __init__(self, words: list[str], log: Path) -> None:
        self._words, self.log = words, log
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again."""
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(self._words, stdout=file, stderr=file)

    def kill(self) -> None:
        """As a lost node takes it away."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """As Kubernetes ends it."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


@contextlib.contextmanager
def running_operator(cluster: Cluster, log: Path, *flags: str) -> Iterator[Path]:
    """Our operator; gives its log."""
    made = operator_process(cluster, log, *flags)
    try:
        yield log
    finally:
        made.end()


def operator_process(cluster: Cluster, log: Path, *flags: str) -> OperatorProcess:
    """Our operator, which somebody must end."""
    install_crds(cluster.api, ROOT / "config" / "crd" / "bases")
    cluster.kubectl("apply", "-f", str(ROOT / "config" / "rbac" / "role.yaml"))
    kubeconfig = cluster.control_plane.service_account_kubeconfig("orchestra-system", "orchestra-operator")
    words = [sys.executable, "-m", "orchestra.operator", "--kubeconfig", str(kubeconfig), "--progress-seconds", "1",
             "--lease-namespace", "orchestra-system", *flags]  # fmt: skip
    return OperatorProcess(words, log)


class OnCluster:
    """One namespace of the cluster as one of its users sees it."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, operator_log: Path) -> None:
        self.cluster, self.namespace, self.folder, self._operator_log = cluster, namespace, folder, operator_log
        self._home = folder / "home"
        self.kubeconfig = self._user()
        self.engine = KubernetesEngine(load_kubeconfig(self.kubeconfig), namespace=namespace, context="test")
        wait_until("the user's rights", self._may_list)

    def close(self) -> None:
        """Ends the jobs and the engine."""
        for job in self.cluster.api.get(self.path("torchrunjobs"))["items"]:
            self.cluster.api.delete(self.path("torchrunjobs", job["metadata"]["name"]))
        for queue in self.cluster.api.get(self.path("torchrunqueues"))["items"]:
            path = self.path("torchrunqueues", queue["metadata"]["name"])
            self.cluster.api.delete(path)
            with contextlib.suppress(ApiError):  # the operator, which lets it go, may be about to end
                self.cluster.api.patch(path, {"metadata": {"finalizers": None}})
        self.engine.close()

    def path(self, plural: str, name: str = "") -> str:
        """Path of our own objects."""
        base = f"/apis/torchrun.ai/v1alpha1/namespaces/{self.namespace}/{plural}"
        return f"{base}/{name}" if name else base

    def _user(self) -> Path:
        """Somebody with the ordinary rights of a namespace's user: they make jobs and read queues."""
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "users"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
        }
        self.cluster.api.create(f"/apis/{group}/v1/namespaces/{self.namespace}/rolebindings", binding)
        return self.cluster.control_plane.user_kubeconfig(USER)

    def _may_list(self) -> bool:
        try:
            self.engine.jobs()
            self.engine.queues()
        except EngineError:
            return False
        return True

    def queue(self, name: str = "queue", **spec: Any) -> None:
        """A queue without GPUs whose pods borrow this machine's Python; made by an administrator."""
        body = {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunQueue", "metadata": {"name": name}}
        self.cluster.api.create(self.path("torchrunqueues"), body | {"spec": a_queue_spec() | spec})

    def submit(self, name: str, command: Any, **spec: Any) -> TorchrunJob:
        """Submits a job, and waits until the operator has heard of it."""
        job = a_job(name, command=command, **spec)
        self.engine.submit(Submission(job=job, folder=str(self.folder)))
        return self.wait(name, lambda job: status_of(job).phase is not None)

    def cooperative(self, name: str, *words: object, **spec: Any) -> TorchrunJob:
        """Submits the cooperative script as a plain command."""
        return self.submit(name, self.cooperative_command(*words), launcher="none", **spec)

    def cooperative_command(self, *words: object) -> list[str]:
        """The command of the cooperative script."""
        return [sys.executable, str(COOPERATIVE), *map(str, words)]

    def wait(self, name: str, until: Callable[[TorchrunJob], object], timeout: float = TIMEOUT) -> TorchrunJob:
        """The job once `until` holds."""
        end = time.monotonic() + timeout
        while True:
            job = self.engine.get(name)
            if until(job):
                return job
            if time.monotonic() > end or status_of(job).phase in ("Succeeded", "Failed"):
                told = self._operator_log.read_text()[-3000:]
                raise TimeoutError(f"{name} did not get there: {job.status}\n{self.log(name)}\n{told}")
            time.sleep(0.2)

    def rest(self, name: str, timeout: float = TIMEOUT) -> TorchrunJob:
        """The job once it is at rest and its pods have ended."""
        self.wait(name, at_rest, timeout)
        wait_until(f"the pods of {name} have ended", lambda: all(map(_ended, self.pods(name))), timeout=timeout)
        return self.engine.get(name)

    def step(self, name: str, at_least: int, timeout: float = TIMEOUT) -> TorchrunJob:
        """The job once it has reported a step."""

        def reached(job: TorchrunJob) -> bool:
            progress = status_of(job).progress
            return progress is not None and (progress.step or 0) >= at_least

        return self.wait(name, reached, timeout)

    def log(self, name: str) -> str:
        """All lines of the job."""
        return "\n".join(f"[{line.source}] {line.text}" for line in self.engine.logs(name, LogQuery()))

    def saved_step(self, name: str) -> int:
        """The step that the cooperative script saved last."""
        claims = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        claim = self.cluster.api.get(f"{claims}/{name}-checkpoints")
        volume = self.cluster.api.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
        return int(json.loads((Path(volume["spec"]["hostPath"]["path"]) / "step.json").read_text())["step"])

    def pods(self, job: str = "") -> list[Json]:
        """All pods of the namespace, or the workers of one job."""
        chosen = {"labelSelector": f"torchrun-job-name={job},torchrun.ai/role=worker"} if job else {}
        found: list[Json] = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/pods", **chosen)["items"]
        return found

    def nothing_left(self) -> None:
        """Fails when a pod of any job still runs after a while."""
        wait_until("all pods have ended", lambda: all(map(_ended, self.pods())), timeout=TIMEOUT)

    def cli(
        self, *words: str, program: tuple[str, ...] = ("orchestra",), given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`orchestra ...` (or another program) as the user types it, in the user's folder."""
        return subprocess.run(
            [*program, *words], capture_output=True, text=True, check=False, env=self._env(), cwd=self.folder,
            timeout=300, input=given,
        )  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        """`orchestra ...` that goes on, and hears ^C as from a terminal though a run in the background ignores it."""
        heard = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
        return subprocess.Popen(
            [sys.executable, "-c", heard, "orchestra", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._env(),
            cwd=self.folder,
        )  # fmt: skip

    def _env(self) -> dict[str, str]:
        programs = f"{self.cluster.programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        home = str(self._home)
        return os.environ | {"KUBECONFIG": str(self.kubeconfig), "PATH": programs, "ORCHESTRA_HOME": home, "HOME": home}


def _ended(pod: Json) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def a_queue_spec() -> Json:
    """What a queue needs so that pods run with this machine's Python, torch and our tests' scripts."""
    lent = torch_mounts(ROOT / "src", COOPERATIVE.parent)
    volumes = [volume for volume in lent.volumes if volume["name"] != "shm"]
    mounts = [mount for mount in lent.mounts if mount["name"] != "shm"]
    # A share of the CPU, so that a busy machine does not starve pods, but no limit, which would make them slow on a quiet one.
    trainer = {"name": "trainer", "volumeMounts": mounts, "resources": {"requests": {"cpu": "400m"}}}
    return {
        "nodeResources": {"memory": "2Gi"},
        "image": HOST,
        "imagePullPolicy": "Never",
        "env": [{"name": "PATH", "value": f"{sys.prefix}/bin:/usr/bin:/bin"}, {"name": "HOME", "value": "/tmp"}],
        "storage": {"checkpoints": {"sizePerGPU": "10Mi", "retain": False}},
        "distributed": {"backend": "gloo"},
        "podTemplate": {"spec": {"volumes": volumes, "containers": [trainer]}},
    }
