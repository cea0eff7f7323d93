"""The kubernetes engine on a real API server, without an operator: what it writes, what it refuses, what it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from builders import a_cpu_queue, a_job
from orchestra.api import Invalid, TorchrunJob, TorchrunQueue
from orchestra.api.base import to_builtins
from orchestra.api.engine import EngineError, NotFound, Submission
from orchestra.cluster.engine import KubernetesEngine
from orchestra.kube.client import Client
from orchestra.kube.config import Access, load_kubeconfig
from orchestra.kube.errors import Unreachable
from orchestra.operator.rights import role_manifests
from orchestra.plan.queues import SHARED_NAMESPACE
from testbed.control_plane import ControlPlane
from testbed.waiting import wait_until

pytestmark = pytest.mark.usefixtures("crds")
RBAC = "/apis/rbac.authorization.k8s.io/v1"
OURS = "/apis/torchrun.ai/v1alpha1/namespaces"
Json = dict[str, Any]


class Users:
    """A namespace with a user, who makes jobs, and a queue administrator."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        for role in role_manifests():
            if role["metadata"]["name"] in ("orchestra-user", "orchestra-queue-admin"):
                plane.admin.apply(f"{RBAC}/clusterroles/{role['metadata']['name']}", role)
        self._bind("user", "orchestra-user")
        self._bind("boss", "orchestra-user")
        self._bind("boss", "orchestra-queue-admin")
        shared = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHARED_NAMESPACE}}
        plane.admin.apply(f"/api/v1/namespaces/{SHARED_NAMESPACE}", shared)
        self._bind("user", "orchestra-user", SHARED_NAMESPACE)
        self._bind("boss", "orchestra-user", SHARED_NAMESPACE)
        self.made: list[KubernetesEngine] = []
        self.user, self.boss = self.engine("user"), self.engine("boss")
        wait_until("the rights", lambda: self._may(self.user) and self._may(self.boss))

    def engine(self, who: str, **options: Any) -> KubernetesEngine:
        """The engine as one of them has it."""
        made = KubernetesEngine(load_kubeconfig(self.kubeconfig(who)), namespace=self.namespace, **options)
        self.made.append(made)
        return made

    def kubeconfig(self, who: str) -> Path:
        """Their kubeconfig."""
        return self.plane.user_kubeconfig(who if who == "admin" else f"{who}-{self.namespace}",
                                          ["system:masters"] if who == "admin" else [])  # fmt: skip

    def _bind(self, who: str, role: str, namespace: str = "") -> None:
        body = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{who}-{role}-{self.namespace}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"{who}-{self.namespace}"}],
        }
        self.plane.admin.create(f"{RBAC}/namespaces/{namespace or self.namespace}/rolebindings", body)

    def _may(self, engine: KubernetesEngine) -> bool:
        try:
            engine.jobs()
            engine.queues()
            return all(one.state != "unknown" for one in engine.doctor() if one.about == "queues")
        except EngineError:
            return False

    def objects(self, plural: str) -> list[Json]:
        """What is there."""
        found: list[Json] = self.plane.admin.get(f"{OURS}/{self.namespace}/{plural}")["items"]
        return found

    def queue(self, name: str = "queue", **spec: Any) -> TorchrunQueue:
        """A queue that is there."""
        queue = a_cpu_queue(name, **spec)
        body = {"apiVersion": queue.api_version, "kind": queue.kind, **to_builtins(queue)}
        self.plane.admin.create(f"{OURS}/{self.namespace}/torchrunqueues", body)
        return queue

    def in_phase(self, name: str, phase: str, **more: Any) -> None:
        """As the operator would say."""
        path = f"{OURS}/{self.namespace}/torchrunjobs/{name}/status"
        self.plane.admin.patch(path, {"status": {"phase": phase, **more}})


def submission(name: str = "job", folder: str = "/work", queue: TorchrunQueue | None = None, **spec: Any) -> Submission:
    return Submission(job=a_job(name, **spec), queue=queue, folder=folder)


@pytest.fixture
def users(control_plane: ControlPlane, namespace: str) -> Iterator[Users]:
    """Two people and a namespace."""
    made = Users(control_plane, namespace)
    yield made
    for engine in made.made:
        engine.close()


def test_what_cannot_run_is_refused_and_nothing_is_left(users: Users) -> None:
    with pytest.raises(Invalid, match="there is no queue 'queue'"):
        users.user.submit(submission())
    users.queue("queues")
    with pytest.raises(Invalid, match="did you mean queues"):
        users.user.submit(submission())
    users.queue()
    with pytest.raises(Invalid, match="numGPUs"):
        users.user.submit(submission(numGPUs=8))
    with pytest.raises(Invalid) as refused:  # what only the server looks at
        users.boss.submit(submission("Bad_Name", queue=a_cpu_queue("fresh"), jobQueue="fresh"))
    assert [problem.path for problem in refused.value.problems] == ["metadata.name"]
    with pytest.raises(EngineError, match="--cpu is for this machine"):
        users.user.submit(Submission(job=a_job(), folder="/", cpu=True))
    assert users.objects("torchrunjobs") == []
    assert sorted(one["metadata"]["name"] for one in users.objects("torchrunqueues")) == ["queue", "queues"]


def test_who_may_not_read_the_shared_queues_is_not_told_that_there_is_none(users: Users) -> None:
    path = f"{RBAC}/namespaces/{SHARED_NAMESPACE}/rolebindings/user-orchestra-user-{users.namespace}"
    users.plane.admin.delete(path)

    def hidden() -> bool:
        return any("you may not read the shared ones" in one.message for one in users.user.doctor())

    wait_until("the right is gone", hidden)
    users.user.submit(submission(jobQueue="maybe-shared"))
    assert [one["metadata"]["name"] for one in users.objects("torchrunjobs")] == ["job"]


def test_a_queue_that_comes_with_the_job_needs_the_right_to_write_it(users: Users) -> None:
    queue = a_cpu_queue(image="a:1")
    with pytest.raises(EngineError, match="is not in the cluster, and you may not write queues"):
        users.user.submit(submission(queue=queue))
    assert users.objects("torchrunjobs") == []
    users.boss.submit(submission("first", queue=queue))
    users.user.submit(submission("second", queue=queue))  # it says what is there
    with pytest.raises(EngineError, match="differs from the one in the cluster"):
        users.user.submit(submission("third", queue=a_cpu_queue(image="a:2")))
    users.boss.submit(submission("third", queue=a_cpu_queue(image="a:2")))
    assert users.objects("torchrunqueues")[0]["spec"]["image"] == "a:2"
    assert [job.metadata.name for job in users.user.jobs()] == ["first", "second", "third"]


def test_a_submission_that_breaks_in_the_middle_takes_its_queue_back(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Client.create

    async def cut(self: Client, *args: Any, **more: Any) -> Any:
        if not more.get("dry_run"):
            raise Unreachable("POST: cut")
        return await real(self, *args, **more)

    users.queue("old", image="a:1")
    monkeypatch.setattr(Client, "create", cut)
    for name in ("new", "old"):
        with pytest.raises(EngineError, match="does not answer"):
            users.boss.submit(submission(queue=a_cpu_queue(name, image="a:2"), jobQueue=name))
    (left,) = users.objects("torchrunqueues")
    assert (left["metadata"]["name"], left["spec"]["image"]) == ("old", "a:1")
    assert users.objects("torchrunjobs") == []


def test_names_folders_and_order(users: Users) -> None:
    users.queue()
    for name, folder in (("a", "/one"), ("bert", "/two"), ("c", "/one"), ("d", "/two")):
        users.user.submit(submission(name, folder))
    assert [job.metadata.name for job in users.user.jobs()] == ["a", "bert", "c", "d"]
    assert (users.user.newest(Path("/one")), users.user.newest(Path("/three"))) == ("c", None)
    found = users.user.from_folder("bert", Path("/two"), 30.0)
    assert found is not None
    assert found.metadata.name == "bert"
    with pytest.raises(EngineError, match="a is Pending; delete or cancel it first"):
        users.user.submit(submission("a"))
    users.in_phase("a", "Succeeded")
    before = users.user.get("a").metadata.uid
    users.user.submit(submission("a"))
    assert users.user.get("a").metadata.uid != before
    with pytest.raises(NotFound, match=r"there is no job bret .* did you mean bert"):
        users.user.get("bret")
    elsewhere = msgspec.structs.replace(a_job().metadata, namespace="other")
    with pytest.raises(EngineError, match="add -n"):
        users.user.submit(Submission(job=TorchrunJob(metadata=elsewhere, spec=a_job().spec), folder="/"))


def test_suspend_resume_cancel_and_what_they_refuse(users: Users) -> None:
    users.queue()
    users.user.submit(submission(numNodes=1))
    users.in_phase("job", "Running")
    with pytest.raises(EngineError, match="nothing to resume"):
        users.user.resume("job", {})
    assert users.user.suspend("job").spec.suspend
    with pytest.raises(EngineError, match="still Running and saving"):
        users.user.resume("job", {})
    users.in_phase("job", "Suspended")
    with pytest.raises(EngineError, match="is Suspended already"):
        users.user.suspend("job")
    with pytest.raises(Invalid, match="cannot change"):
        users.user.resume("job", {"jobQueue": "other"})
    made = users.user.resume("job", {"numNodes": 3, "command": ["python", "other.py"], "lifecycle.maxRestarts": 9})
    assert (made.spec.num_nodes, made.spec.command, made.spec.suspend) == (3, ["python", "other.py"], False)
    assert made.spec.lifecycle is not None
    assert made.spec.lifecycle.max_restarts == 9
    users.in_phase("job", "Running")
    assert "torchrun.ai/cancelled" in users.user.cancel("job").metadata.annotations
    users.in_phase("job", "Failed")
    with pytest.raises(EngineError, match="is Failed already"):
        users.user.cancel("job")


def test_delete_keeps_retained_claims_unless_purged_and_history_remembers(users: Users) -> None:
    users.queue()
    claims = f"/api/v1/namespaces/{users.namespace}/persistentvolumeclaims"
    labels = {"torchrun-job-name": "job", "torchrun.ai/retained": "true"}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "job-checkpoints", "labels": labels},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    users.plane.admin.create(claims, claim)
    boss = users.engine("admin")
    for purge in (False, True):
        users.user.submit(submission())
        job = users.user.get("job")
        assert "job-checkpoints (kept" in users.user.places("job")["output"]
        about = {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunJob", "name": "job",
                 "namespace": users.namespace, "uid": job.metadata.uid}  # fmt: skip
        event = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"e-{purge}".lower()}, "involvedObject": about,
            "reason": "Done", "message": "Succeeded: all ranks are done", "type": "Normal",
            "lastTimestamp": "2026-11-15T20:00:00Z", "source": {"component": "test"},
        }  # fmt: skip
        users.plane.admin.create(f"/api/v1/namespaces/{users.namespace}/events", event)
        told = users.user.events("job")
        assert [(one.reason, one.message) for one in told][1:] == [("Done", "Succeeded: all ranks are done")]
        assert told[0].reason == "Submitted"
        boss.delete("job", purge=purge)
        with pytest.raises(NotFound):
            users.user.get("job")
        if purge:
            wait_until("the claim goes", lambda: users.plane.admin.find(f"{claims}/job-checkpoints") is None)
        else:
            assert users.plane.admin.find(f"{claims}/job-checkpoints") is not None
    runs = users.user.history()
    assert [(run.job.metadata.name, run.job.status and run.job.status.phase) for run in runs] == [
        ("job", "Succeeded")
    ] * 2
    assert all(run.deleted for run in runs)


def test_doctor_says_what_is_missing_and_what_we_may_not_see(users: Users) -> None:
    found = {one.about: one for one in users.user.doctor()}
    assert found["cluster"].state == "ok"
    assert found["CRD torchrunjobs"].state == "ok"
    assert found["queues"].state == "missing"
    assert found["rights"].state == "ok", found["rights"]
    assert found["gpus"].state == "unknown", "a user may not read nodes"
    all_seen = {one.about: one for one in users.engine("admin").doctor()}
    assert all_seen["operator"].state == "missing"
    assert "install" in all_seen["operator"].mend
    assert all_seen["gpus"].state == "warning"
    nobody = {one.about: one for one in users.engine("nobody").doctor()}
    assert nobody["rights"].state == "missing"
    assert "create torchrunjobs" in nobody["rights"].message


def test_no_cluster_there_is_told_soon_and_with_the_way_out() -> None:
    engine = KubernetesEngine(Access(server="https://127.0.0.1:1"))
    with pytest.raises(EngineError, match=r"does not answer.*--local"):
        engine.jobs()
    assert [one.state for one in engine.doctor()] == ["missing"]
    engine.close()


class Shell:
    """A user's shell: a folder, a kubeconfig, a home of the embedded engine."""

    def __init__(self, users: Users, folder: Path, who: str = "user") -> None:
        self.users, self.folder, self.kubeconfig = users, folder, folder / "kubeconfig"
        config = yaml.safe_load(users.kubeconfig(who).read_text())
        config["contexts"][0]["context"]["namespace"] = users.namespace
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def __call__(self, *words: str, program: str = "orchestra", **env: str) -> subprocess.CompletedProcess[str]:
        home = str(self.folder / "home")
        return subprocess.run(
            [str(Path(sys.executable).with_name(program)), *words], capture_output=True, text=True, check=False,
            cwd=self.folder, timeout=120,
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig), "ORCHESTRA_HOME": home, "HOME": home} | env,
        )  # fmt: skip


def test_the_command_line_finds_the_engine_that_is_meant(users: Users, tmp_path: Path) -> None:
    shell, here = Shell(users, tmp_path), ["-n", users.namespace]
    users.queue()
    users.user.submit(submission("there", str(tmp_path), launcher="none"))
    listed = shell("list", *here, "-o", "name")
    assert (listed.stdout, listed.returncode) == ("torchrunjob/there\n", 0)
    assert shell("list", "--local").stdout == ""
    assert users.namespace in shell("get", "-A", "--no-headers", "--kubeconfig", str(users.kubeconfig("admin"))).stdout
    assert shell("get", *here, "-l", "team=none", "-o", "name").stdout == ""
    assert '"kind": "TorchrunJob"' in shell("get", "there", *here, "-o", "json").stdout
    missing = shell("status", "their", *here)
    assert (missing.returncode, "did you mean there" in missing.stderr) == (102, True)
    assert shell("status", *here).returncode == 101, "the newest of this folder is not finished"
    assert "no operator has looked" in shell("why", *here).stdout
    run = shell("run", "-d", "--name", "mine", "--launcher", "none", "echo hello")
    assert "on this machine" in run.stdout, run.stderr
    refused = shell("run", *here, "echo hello")
    assert (refused.returncode, "submit goes to the cluster" in refused.stderr) == (1, True)
    waited = shell("wait", "mine")  # without any flag: this folder's job of that name is on this machine
    assert (waited.returncode, "this machine" in waited.stderr) == (0, True), waited.stderr
    offline = shell("logs", "mine", KUBECONFIG=str(unreachable(tmp_path)))
    assert ("[r0] hello" in offline.stdout, "does not answer" in offline.stderr) == (True, True), offline.stderr
    assert shell("list", KUBECONFIG=str(unreachable(tmp_path))).returncode == 1


def test_a_command_goes_to_the_only_queue(users: Users, tmp_path: Path) -> None:
    shell, here = Shell(users, tmp_path), ["-n", users.namespace]
    users.queue("only")
    made = shell("submit", "-d", *here, "python train.py", program="kubectl-torchrun")
    assert "train submitted to queue only on cluster" in made.stdout, made.stderr
    assert f"next: kubectl torchrun logs -f train -n {users.namespace}" in made.stdout
    assert shell("delete", "train", *here, program="kubectl-torchrun").stdout == "train deleted\n"
    users.queue("other")
    assert "--queue is missing; one of only, other" in shell("submit", "-d", *here, "python train.py").stderr
    assert shell("queue", *here, "-o", "name").stdout.split() == ["torchrunqueue/only", "torchrunqueue/other"]


def test_completion_offers_the_jobs_there_are(users: Users, tmp_path: Path) -> None:
    shell, here = Shell(users, tmp_path), ["-n", users.namespace]
    users.queue()
    for name in ("alpha", "beta"):
        users.user.submit(submission(name))
    offered = shell("logs", *here, "a", program="kubectl_complete-torchrun").stdout.split()
    assert offered == ["alpha", ":4"]
    assert shell("submit", *here, "--queue", "", program="kubectl_complete-torchrun").stdout.split() == ["queue", ":4"]
    assert (
        shell("logs", "", program="kubectl_complete-torchrun", KUBECONFIG=str(unreachable(tmp_path))).stdout == ":4\n"
    )


def unreachable(folder: Path) -> Path:
    """A kubeconfig of a cluster that is not there."""
    path = folder / "unreachable"
    path.write_text(
        "current-context: c\ncontexts: [{name: c, context: {cluster: c}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n"
    )
    return path
