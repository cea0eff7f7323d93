"""A folder on two real nodes: sent through the API server, kept by the store, pulled by every worker before it starts."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster_engine import COOPERATIVE, OnCluster, OperatorProcess, operator_process
from orchestra.operator.workspace_store import NAME, PORT
from orchestra.plan.status import status_of
from testbed.cluster import Cluster
from testbed.images import HOST
from testbed.waiting import wait_until
from workspace_store import a_bringing_queue_spec, running_store

RELOADING = COOPERATIVE.with_name("reloading.py")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
TRAIN = """
import os
from pathlib import Path
import helper
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "says", helper.WORD, "in", os.getcwd(), flush=True)
assert not Path(".env").exists()
"""


@pytest.fixture(scope="module")
def system(cluster: Cluster) -> Iterator[str]:
    """A namespace with the store."""
    with running_store(cluster) as namespace:
        yield namespace


@pytest.fixture(scope="module")
def operator(cluster: Cluster, system: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    url = f"http://{NAME}.{system}.svc:{PORT}"
    made = operator_process(cluster, log, "--image", HOST, "--workspace-url", url)
    yield made
    made.end()


@pytest.fixture(scope="module")
def operator_log(operator: OperatorProcess) -> Path:
    return operator.log


def store_volume(cluster: Cluster, system: str) -> Path:
    """Where the store's claim lies on this machine."""
    claim = cluster.api.get(f"/api/v1/namespaces/{system}/persistentvolumeclaims/{NAME}")
    volume = cluster.api.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
    return Path(volume["spec"]["hostPath"]["path"])


def kill_store(cluster: Cluster, system: str) -> None:
    """The store's pod, as a lost node takes it away; its Deployment makes another, on the same claim."""
    chosen = "app.kubernetes.io/component=workspace"
    cluster.kubectl("-n", system, "delete", "pods", "-l", chosen, "--force", "--grace-period=0")


@pytest.fixture
def project(site: OnCluster, system: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, and a queue whose jobs bring their code."""
    monkeypatch.setenv("ORCHESTRA_SYSTEM_NAMESPACE", system)
    spec = a_bringing_queue_spec()
    spec["storage"] |= {"workspace": {"enabled": True, "sizePerGPU": "10Mi"}}
    spec["nodeResources"] = {"gpus": 2, "memory": "4Gi"}
    site.queue("q", **spec)
    spec["storage"] |= {"workspace": {"enabled": True, "sizePerGPU": "10Mi", "accessModes": ["ReadWriteOnce"]}}
    site.queue("apart", **spec)
    made = site.folder / "project"
    made.mkdir()
    site.folder = made
    return made


def test_the_seeds_line_trains_this_folder(
    site: OnCluster, project: Path, system: str, operator: OperatorProcess
) -> None:
    """Although the store's pod and the operator are killed while the folder is on its way."""
    (project / "weights.bin").write_bytes(os.urandom(24 << 20))
    (project / "train.py").write_text(TRAIN)
    (project / "helper.py").write_text("WORD = 'this folder'\n")
    (project / ".env").write_text("TOKEN=hunter2\n")

    here = ["-n", site.namespace]
    line = ["submit", "--queue", "q", "--gpus", "4", "python train.py", "-d", *here]
    with ThreadPoolExecutor(1) as pool:
        submitting = pool.submit(site.cli, *line, program=("kubectl", "torchrun"))
        uploads = store_volume(site.cluster, system) / "uploads" / "parts"
        wait_until("some of it is there", lambda: any(one.stat().st_size for one in uploads.rglob("*/*")))
        kill_store(site.cluster, system)
        operator.kill()
        assert not submitting.done(), "it was killed in the middle"
        operator.start()
        submitted = submitting.result()
    assert "train submitted to queue q" in submitted.stdout, submitted.stderr
    assert "sent this folder: snapshot" in submitted.stderr, submitted.stderr
    assert "warning: sent" not in submitted.stderr
    assert ".env looks like a secret" in submitted.stderr
    waited = site.cli("wait", "train", *here)
    log = site.log("train")
    assert waited.returncode == 0, (waited, log)
    for rank in range(4):
        assert f"rank {rank} of 4 says this folder in /app" in log
    brought = site.cluster.kubectl("-n", site.namespace, "logs", "train-sync-0")
    assert "code: snapshot" in brought, "the claim was filled by a pod of its own"
    again = site.cli("submit", "--queue", "q", "--gpus", "1", "--name", "again", "python train.py", "-d", *here)
    assert again.returncode == 0, again.stderr
    assert site.cli("wait", "again", *here).returncode == 0, site.log("again")
    assert "hunter2" not in site.cluster.kubectl("-n", site.namespace, "get", "pods", "-o", "yaml")


@pytest.mark.parametrize("queue", ["q", pytest.param("apart", marks=pytest.mark.soak)])
def test_an_edited_line_takes_effect_in_the_running_pods_at_one_step(
    site: OnCluster, project: Path, queue: str, system: str, operator: OperatorProcess
) -> None:
    """`sync -w`: the same pods, all four ranks from the step they agreed on; a new worker starts with the new code.

    On a claim that all nodes share (`q`), and on a folder of each node's own (`apart`). Store and operator are killed
    before a worker is replaced, and the job starts all the same.
    """
    (project / "train.py").write_text(RELOADING.read_text())
    (project / "version.py").write_text("N = 1\n")
    here = ["-n", site.namespace]
    line = ["submit", "--queue", queue, "--gpus", "4", "python train.py", "-d", *here]
    submitted = site.cli(*line, program=("kubectl", "torchrun"))
    assert f"train submitted to queue {queue}" in submitted.stdout, submitted.stderr
    site.step("train", 2)
    before = {pod["metadata"]["uid"] for pod in site.pods("train")}
    watching = site.start("sync", "train", "-w", *here)
    assert watching.stdout is not None
    told = ""
    try:
        assert "watching" in watching.stdout.readline()
        (project / "version.py").write_text("N = 2\n")
        while (text := watching.stdout.readline()) and not text.startswith("next:"):
            told += text
    finally:
        watching.send_signal(signal.SIGINT)
        _, complaints = watching.communicate(timeout=60)
    print(told)
    at = re.search(r"new code in all workers at step (\d+)", told)
    assert at is not None, (told, complaints, site.log("train"))
    for phase in ("send", "stage and acknowledge", "stop and save", "flip", "start", "in all"):
        assert phase in told
    assert "started cold" not in told
    begun = f"version 2 goes on from {at[1]}"
    wait_until("all ranks run the new code", lambda: site.log("train").count(begun) == 4, timeout=240)
    assert {pod["metadata"]["uid"] for pod in site.pods("train")} == before, "the same pods"
    job = site.engine.get("train")
    assert (status_of(job).attempt, status_of(job).restarts or 0) == (1, 0)
    assert job.spec.workspace is not None
    assert (job.spec.workspace.snapshot or "none")[:12] in site.cli("history", *here).stdout

    (project / "version.py").write_text("N = 3\n")
    changed = site.cli("diff", "train", *here)
    assert (changed.returncode, "M version.py" in changed.stdout, "+N = 3" in changed.stdout) == (1, True, True), (
        changed
    )
    (project / "version.py").write_text("N = 2\n")
    assert site.cli("diff", "train", *here).returncode == 0

    site.step("train", int(at[1]) + 2)
    kill_store(site.cluster, system)
    operator.kill()
    victim = site.pods("train")[0]["metadata"]["name"]
    site.cluster.api.delete(f"/api/v1/namespaces/{site.namespace}/pods/{victim}")
    operator.start()
    site.wait("train", lambda job: (status_of(job).attempt or 0) >= 2 and status_of(job).phase == "Running")

    def later() -> list[str]:
        """What the pods of the second attempt have said."""
        names = [pod["metadata"]["name"] for pod in site.pods("train") if pod["metadata"]["name"].endswith("-r2")]
        return [site.cluster.kubectl("-n", site.namespace, "logs", name, "-c", "trainer") for name in names]

    wait_until("the new code in both", lambda: [" goes on from" in log for log in later()] == [True, True])
    assert all("version 2 goes on" in log and "version 1" not in log for log in later()), later()
    claims = f"/api/v1/namespaces/{site.namespace}/persistentvolumeclaims"
    assert (queue == "q") == (site.cluster.api.find(f"{claims}/train-workspace") is not None)
    assert site.cli("delete", "train", *here).returncode == 0
    wait_until("the claim goes with its job", lambda: site.cluster.api.find(f"{claims}/train-workspace") is None)
