"""A PyTorchJob and a TrainJob on two real nodes, under Kubeflow's real controllers: the same verbs, the same numbers."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from integration.render.test_accepted import accept, cases
from orchestra.plan.where import AGENT_PORT
from orchestra.render import Options, render
from testbed import kubeflow
from testbed.cluster import Cluster
from testbed.ports import free_port
from testbed.waiting import wait_until

from .stories import LOSS, SMOKE, edits_and_restarts, final, trains_to_its_end

pytestmark = [pytest.mark.torch]


@pytest.fixture(scope="module")
def training_operator(cluster: Cluster) -> Iterator[None]:
    """Kubeflow v1, as a process beside the control plane."""
    cluster.import_image(kubeflow.init_image())
    with kubeflow.training_operator(cluster.control_plane):
        yield


@pytest.fixture(scope="module")
def trainer(cluster: Cluster) -> Iterator[None]:
    """Kubeflow v2 with JobSet."""
    with kubeflow.trainer(cluster.control_plane):
        yield


@pytest.mark.training_operator
@pytest.mark.usefixtures("training_operator")
def test_a_pytorchjob_trains_to_the_same_loss_with_our_verbs(deployed: Any) -> None:
    trains_to_its_end(deployed, "pytorchjob", "pytorchjobs")


@pytest.mark.training_operator
@pytest.mark.usefixtures("training_operator")
def test_a_pytorchjob_by_hand(deployed: Any) -> None:
    """What people did with kubectl exec, cp and pkill: look, edit, restart; in the pods that there are."""

    def look() -> None:
        pods = {pod["metadata"]["name"] for pod in deployed.pods("edits")}
        assert pods == {"edits-master-0", "edits-worker-0"}
        page = forwarded_page(deployed, "edits", rank=3)
        assert "3" in page["ranks"], "the port of the pod where the rank runs"
        name = deployed.orchestra("exec", "edits", "--rank", "3", "--", "printenv", "POD_NAME").strip()
        others = deployed.orchestra("exec", "edits", "--rank", "0", "--", "printenv", "POD_NAME").strip()
        assert {name, others} == pods
        beside = "[ -e /proc/1/root/opt/orchestra/agent.pyz ] && echo sees the agent"
        seen = deployed.orchestra("debug", "edits", "--rank", "3", "--image", kubeflow.INIT_IMAGE,
                                  "--", "sh", "-c", beside)  # fmt: skip
        assert "sees the agent" in seen
        refused = deployed.refused("scale", "edits", "--nodes", "3")
        assert "a PyTorchJob keeps the size it was created with" in refused

    edits_and_restarts(deployed, "pytorchjob", look)


@pytest.mark.kubeflow_trainer
@pytest.mark.usefixtures("trainer")
def test_a_trainjob_trains_to_the_same_loss_with_our_verbs(deployed: Any) -> None:
    trains_to_its_end(deployed, "trainjob", "trainjobs,trainingruntimes,jobsets,jobs")


@pytest.mark.kubeflow_trainer
@pytest.mark.usefixtures("trainer")
def test_a_trainjob_is_launched_by_deepspeed_without_ssh(deployed: Any) -> None:
    command = SMOKE.replace("python -m", "deepspeed --no_local_rank --module")
    deployed.orchestra("apply", "--target", "trainjob", deployed.file("deepspeed", command))
    steps, loss = final(deployed.orchestra("logs", "-f", "deepspeed"))
    assert steps == 32
    assert loss == pytest.approx(LOSS, abs=1e-4)
    deployed.orchestra("delete", "deepspeed")


@pytest.mark.training_operator
@pytest.mark.kubeflow_trainer
@pytest.mark.usefixtures("training_operator", "trainer")
def test_every_example_is_taken_by_the_real_controllers(cluster: Cluster, cluster_namespace: str) -> None:
    """Their webhooks check more than their definitions do, and JobSet's come only when the Trainer has made one."""
    made = set()
    for number, (title, queue, job) in enumerate(cases()):
        spec = msgspec.structs.replace(job.spec, suspend=True)
        meta = msgspec.structs.replace(job.metadata, name=f"case-{number}", namespace=None)
        one = msgspec.structs.replace(job, metadata=meta, spec=spec)
        options = Options(image="image", ssh=title == "deepspeed over ssh")
        for manifest in render(queue, one, "pytorchjob", options).objects:
            if manifest["kind"] == "PyTorchJob":
                accept(cluster.api, cluster_namespace, manifest)
        for manifest in render(queue, one, "trainjob", options).objects:
            if manifest["kind"] in ("TrainingRuntime", "TrainJob"):
                accept(cluster.api, cluster_namespace, manifest, keep=True)
        made.add(one.metadata.name)
    job_sets = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{cluster_namespace}/jobsets"

    def missing() -> set[str]:
        return made - {one["metadata"]["name"] for one in cluster.api.get(job_sets)["items"]}

    wait_until("the Trainer has made a JobSet of each", lambda: not missing(), interval=0.5)
    roles = {
        one["metadata"]["name"]: [part["name"] for part in one["spec"]["replicatedJobs"]]
        for one in cluster.api.get(job_sets)["items"]
    }
    assert ["node", "launcher"] in roles.values(), "the MPI runtime"


def forwarded_page(deployed: Any, name: str, rank: int) -> dict[str, Any]:
    """The page of a rank's agent, through `port-forward`."""
    here = free_port()
    process = deployed.started("port-forward", name, "--rank", str(rank), f"{here}:{AGENT_PORT}")

    def page() -> dict[str, Any]:
        assert process.poll() is None, process.communicate()
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{here}/progress", timeout=5) as got,
        ):
            found: dict[str, Any] = json.load(got)
            return found
        return {}

    try:
        return wait_until("the forwarded port answers", page, interval=0.2)
    finally:
        process.kill()
        process.communicate()
