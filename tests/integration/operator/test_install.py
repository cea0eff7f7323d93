"""`install` and `uninstall` on a real API server, and the seed's three commands in any order."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.control_plane import ControlPlane
from testbed.control_plane_options import ControlPlaneOptions
from testbed.programs import programs
from testbed.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
Json = dict[str, Any]
GROUP = "/apis/torchrun.ai/v1alpha1"
DEPLOYMENT = "/apis/apps/v1/namespaces/orchestra-system/deployments/orchestra-operator"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/torchrunjobs.torchrun.ai"
THREE = ("crd/bases/", "rbac/role.yaml", "deployment.yaml")


class Place:
    """A control plane, and the commands of a user who is its admin."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.api = plane, plane.admin
        self._env = {**os.environ, "KUBECONFIG": str(plane.admin_kubeconfig)}

    def orchestra(self, *words: str, fails: bool = False) -> str:
        command = [sys.executable, "-m", "orchestra.cli.main", *words]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == fails, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def kubectl(self, *words: str) -> str:
        command = [str(programs("kubectl")["kubectl"]), *words]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        wait_until(what, condition, timeout=120)

    def clear(self) -> None:
        """As if nothing had ever been installed."""
        self.orchestra("uninstall", "--everything", "--force")
        self.wait("the namespace goes", lambda: self.api.find("/api/v1/namespaces/orchestra-system") is None)
        self.wait("the definition goes", lambda: self.api.find(CRD) is None)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """One of our own: the shared one's definitions are others' business."""
    with ControlPlane(options=ControlPlaneOptions(scheduler=False)) as made:
        yield made


@pytest.fixture
def place(plane: ControlPlane) -> Place:
    """Whatever the tests before have left there."""
    return Place(plane)


@pytest.fixture
def bare(place: Place) -> Place:
    """Where nothing was ever installed."""
    if place.api.find(CRD) is not None or place.api.find("/api/v1/namespaces/orchestra-system") is not None:
        place.clear()
    return place


pytestmark = pytest.mark.control_plane


def job(name: str, **spec: Any) -> Json:
    spec = {"jobQueue": "queue", "command": "python train.py", "numNodes": 2, "gpusPerNode": 1} | spec
    return {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunJob", "metadata": {"name": name}, "spec": spec}


def queue(**spec: Any) -> Json:
    spec = {"nodeResources": {"gpus": 1}, "image": "example/train:1"} | spec
    return {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunQueue", "metadata": {"name": "queue"}, "spec": spec}


def pods(place: Place, namespace: str, name: str) -> list[Json]:
    found: list[Json] = place.api.get(
        f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"torchrun-job-name={name}"
    )["items"]
    return found


@pytest.mark.parametrize("order", [THREE[::-1], (THREE[1], THREE[0], THREE[2])], ids="-".join)
def test_the_three_commands_work_in_any_order(bare: Place, order: tuple[str, ...]) -> None:
    for part in order:
        bare.kubectl("apply", "-f", str(ROOT / "config" / part))
    bare.wait("pods of the operator", lambda: len(_operators(bare)) == 2)
    # A definition is served a moment after it was accepted.
    bare.wait("the kind is served", lambda: "torchrunjobs" in bare.kubectl("api-resources", "--api-group=torchrun.ai"))
    assert bare.kubectl("get", "torchrunjobs", "-A", "--ignore-not-found") == ""
    rules = bare.kubectl(
        "auth", "can-i", "create", "pods", "--as=system:serviceaccount:orchestra-system:orchestra-operator"
    )
    assert rules == "yes\n"


def test_install_applies_config_and_doing_it_again_changes_nothing(bare: Place) -> None:
    would = bare.orchestra("install", "--dry-run")
    assert "created    Deployment orchestra-system/orchestra-operator" in would
    assert bare.api.find("/api/v1/namespaces/orchestra-system") is None, "a dry run changes nothing"
    said = bare.orchestra("install", "--no-wait", "--workspace-store")
    assert said.count("created") == len(said.splitlines())
    for file in ("rbac/role.yaml", "deployment.yaml", "crd/bases/", "workspace.yaml"):
        differs = bare.kubectl(
            "diff", "-f", str(ROOT / "config" / file), "--server-side", "--field-manager=orchestra-install"
        )
        assert differs == ""
    again = bare.orchestra("install", "--no-wait")
    assert again.count("unchanged") == len(again.splitlines()), again
    upgraded = bare.orchestra("install", "--no-wait", "--image", "example/orchestra:2")
    assert "configured Deployment" in upgraded


def test_install_waits_with_the_reason_and_tells_what_to_look_at(place: Place) -> None:
    said = place.orchestra("install", "--timeout", "3s", fails=True)
    assert "0 of 2 operators are ready" in said
    assert "kubectl -n orchestra-system" in said


def test_uninstall_refuses_while_jobs_or_finalizers_remain_and_force_clears_them(place: Place) -> None:
    place.orchestra("install", "--no-wait")
    place.api.create(f"{GROUP}/namespaces/default/torchrunjobs", job("unfinished"))
    body = queue()
    body["metadata"]["finalizers"] = ["torchrun.ai/in-use", "example.com/foreign"]
    place.api.create(f"{GROUP}/namespaces/default/torchrunqueues", body)
    said = place.orchestra("uninstall", fails=True)
    assert "1 jobs are not finished: default/unfinished" in said
    assert "finalizers that only the operator removes: default/queue" in said
    assert "would clear" in place.orchestra("uninstall", "--force", "--dry-run")
    assert place.api.find(DEPLOYMENT) is not None
    place.orchestra("uninstall", "--force")
    assert place.api.find(DEPLOYMENT) is None
    left = place.api.get(f"{GROUP}/namespaces/default/torchrunqueues/queue")["metadata"]
    assert left["finalizers"] == ["example.com/foreign"]
    assert place.api.find(f"{GROUP}/namespaces/default/torchrunjobs/unfinished") is not None, "jobs are the users'"
    assert place.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name").count("orchestra") == 0
    assert "1 jobs would be deleted" in place.orchestra("uninstall", "--everything", fails=True)
    place.api.patch(f"{GROUP}/namespaces/default/torchrunqueues/queue", {"metadata": {"finalizers": []}})


def test_with_roles_alone_some_namespaces_are_served_and_others_are_not(bare: Place, tmp_path: Path) -> None:
    for name in ("team-a", "team-b", "others"):
        bare.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    said = bare.orchestra("install", "--no-wait", "--namespaces", "team-a,team-b")
    assert "not seen at all" in said
    assert "ClusterRole" not in said
    bare.api.create(f"{GROUP}/namespaces/orchestra-queues/torchrunqueues", queue())
    with operator(bare.plane, tmp_path / "log", "--namespaces=team-a,team-b"):
        for name in ("team-a", "team-b", "others"):
            bare.api.create(f"{GROUP}/namespaces/{name}/torchrunjobs", job("train"))
        for name in ("team-a", "team-b"):
            bare.wait(f"workers in {name}", lambda name=name: len(pods(bare, name, "train")) >= 2)  # type: ignore[misc]
    assert not pods(bare, "others", "train")
    assert "not seen at all" in (tmp_path / "log").read_text()
    bare.api.delete(f"{GROUP}/namespaces/team-a/torchrunjobs/train")
    assert "2 jobs are not finished" in bare.orchestra("uninstall", fails=True)
    bare.orchestra("uninstall", "--force")
    assert bare.kubectl("get", "roles,rolebindings", "-A", "-o", "name").count("orchestra") == 0


def test_under_restricted_every_pod_of_a_job_is_admitted_when_the_queue_says_how(place: Place, tmp_path: Path) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    place.api.create(
        "/api/v1/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": labels}},
    )
    place.orchestra("install", "--no-wait")
    secured = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    place.api.create(f"{GROUP}/namespaces/strict/torchrunqueues", queue(securityContext=secured))
    with operator(place.plane, tmp_path / "log"):
        place.api.create(f"{GROUP}/namespaces/strict/torchrunjobs", job("train", distributed={"rdzvBackend": "c10d"}))
        place.wait("two workers and the store", lambda: len(pods(place, "strict", "train")) == 3)


def _operators(place: Place) -> list[Json]:
    selector = "app.kubernetes.io/name=orchestra"
    found: list[Json] = place.api.get("/api/v1/namespaces/orchestra-system/pods", labelSelector=selector)["items"]
    return found


class operator:  # noqa: N801 -- used as a context manager
    """The operator's process, as the ServiceAccount that was installed."""

    def __init__(self, plane: ControlPlane, log: Path, *words: str) -> None:
        kubeconfig = plane.service_account_kubeconfig("orchestra-system", "orchestra-operator")
        self._command = [
            sys.executable,
            "-m",
            "orchestra.cli.main",
            "operator",
            "--kubeconfig",
            str(kubeconfig),
            *words,
        ]
        self._log = log

    def __enter__(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
