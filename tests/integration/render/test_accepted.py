"""Every example, for every target, before a real API server under the real definitions of the foreign kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders import a_cpu_queue, a_job, a_queue
from orchestra.api import TorchrunJob, TorchrunQueue
from orchestra.api.load import load
from orchestra.plan.queues import queue_for
from orchestra.render import TARGETS, Options, Target, render
from testbed.api import Api, ApiError
from testbed.control_plane import ControlPlane
from testbed.foreign_crds import JOBSET, TRAINER, TRAINING_OPERATOR, ForeignCrdsUnavailable, foreign_crds
from testbed.tiers import Tier, end_as_unavailable

pytestmark = pytest.mark.usefixtures("crds")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
PLURALS = {
    "ConfigMap": "configmaps",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Service": "services",
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "Job": "jobs",
    "PodTemplate": "podtemplates",
    "PyTorchJob": "pytorchjobs",
    "TrainJob": "trainjobs",
    "TrainingRuntime": "trainingruntimes",
    "JobSet": "jobsets",
    "TorchrunJob": "torchrunjobs",
    "TorchrunQueue": "torchrunqueues",
}


def the_examples() -> list[tuple[TorchrunQueue, TorchrunJob]]:
    loaded = load([EXAMPLES])
    queues = [one.object for one in loaded.queues]
    found = []
    for document in loaded.jobs:
        queue = queue_for(document.object, queues)
        assert queue is not None
        found.append((queue, document.object))
    return found


def with_everything() -> tuple[TorchrunQueue, TorchrunJob]:
    """A job that uses nearly every field that ends up in a pod."""
    queue = a_queue(
        image="image",
        imagePullPolicy="Always",
        imagePullSecrets=[{"name": "registry"}],
        serviceAccountName="trainer",
        securityContext={"runAsUser": 1000, "fsGroup": 1000, "capabilities": {"drop": ["ALL"]}},
        envFrom=[{"configMapRef": {"name": "settings"}}],
        storage={
            "shmSizePerGPU": "1Gi",
            "workspace": {"source": "git", "url": "https://example.com/code.git", "ref": "main"},
            "datasets": {"claimName": "datasets-pvc"},
            "checkpoints": {"sizePerGPU": "1Gi"},
            "models": {"claimName": "models-pvc"},
        },
        scheduling={
            "priorityClassName": "urgent",
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "spread": True,
        },
        network={"interface": "eth0", "hostNetwork": True},
        podTemplate={
            "metadata": {"annotations": {"sidecar": "no"}},
            "spec": {"containers": [{"name": "trainer", "stdin": True}], "dnsConfig": {"options": [{"name": "ndots"}]}},
        },
        lifecycle={"activeDeadlineSeconds": 3600, "ttlSecondsAfterFinished": 60, "hangTimeoutSeconds": 900},
    )
    job = a_job(
        numNodes=3,
        setupCommand="echo $(date) && true",
        environment={"requirements": "requirements.txt", "python": "3.11"},
        env=[
            {"name": "A", "value": "$(NOT_EXPANDED)"},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        secrets=[{"name": "hf-token", "key": "HUGGINGFACE_HUB_TOKEN"}, {"name": "all"}],
        sync={"output": "s3://bucket/out", "secretName": "s3"},
        volumes=[{"name": "scratch", "emptyDir": {}}],
        volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}],
        labels={"team": "vision"},
        annotations={"note": "a note"},
    )
    return queue, job


def cases() -> list[tuple[str, TorchrunQueue, TorchrunJob]]:
    found = [(job.metadata.name, queue, job) for queue, job in the_examples()]
    found.append(("everything", *with_everything()))
    found.append(("deepspeed", a_queue(image="image"), a_job(numNodes=2, command="deepspeed train.py")))
    found.append(("deepspeed over ssh", a_queue(image="image"), a_job(numNodes=2, command="deepspeed train.py")))
    found.append(("suspended", a_cpu_queue(image="image"), a_job(numNodes=2, suspend=True)))
    return found


CASES = cases()


@pytest.fixture(scope="session")
def kubeflow(control_plane: ControlPlane) -> str | None:
    """Installs the foreign kinds; else the reason why they cannot be had."""
    try:
        control_plane.install_crds(foreign_crds(TRAINER, JOBSET, TRAINING_OPERATOR))
    except ForeignCrdsUnavailable as error:
        return str(error)
    return None


@pytest.fixture
def kinds(request: pytest.FixtureRequest, control_plane: ControlPlane, kubeflow: str | None) -> Api:
    """The API server with all kinds that we render."""
    if kubeflow is not None:
        tier = Tier("Kubeflow's kinds", "control_plane", (), lambda _: None, required_in_ci=False)
        end_as_unavailable(request.node, tier, kubeflow)
    return control_plane.admin


def accept(api: Api, namespace: str, manifest: dict[str, Any], *, keep: bool = False) -> dict[str, Any]:
    """What the server makes of it, without keeping it unless told to; unknown fields are errors."""
    version = manifest["apiVersion"]
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    path = f"{base}/namespaces/{namespace}/{PLURALS[manifest['kind']]}"
    options = {"fieldValidation": "Strict"} if keep else {"fieldValidation": "Strict", "dryRun": "All"}
    return api.create(path, manifest, **options)


def pod_templates(value: Any) -> list[dict[str, Any]]:
    """Every pod template within an object."""
    if isinstance(value, list):
        return [found for item in value for found in pod_templates(item)]
    if not isinstance(value, dict):
        return []
    if isinstance(value.get("spec"), dict) and "containers" in value["spec"]:
        return [value]
    return [found for item in value.values() for found in pod_templates(item)]


@pytest.mark.parametrize("plain", [False, True], ids=["agent", "plain"])
@pytest.mark.parametrize("target", TARGETS)
def test_the_api_server_accepts_every_example(kinds: Api, namespace: str, target: Target, plain: bool) -> None:
    for name, queue, job in CASES:
        options = Options(plain=plain, image="image", ssh=name == "deepspeed over ssh")
        for manifest in render(queue, job, target, options).objects:
            assert accept(kinds, namespace, manifest)["kind"] == manifest["kind"], name
            for template in pod_templates(manifest) if manifest["kind"] in ("PyTorchJob", "TrainingRuntime") else []:
                # The definitions of foreign kinds check a pod's fields but not its sense; a PodTemplate does.
                whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
                accept(kinds, namespace, whole)
            if manifest["kind"] == "TrainingRuntime":
                accept(kinds, namespace, job_set(manifest))


def job_set(runtime: dict[str, Any]) -> dict[str, Any]:
    """What the Trainer makes of a runtime."""
    spec = runtime["spec"]["template"]["spec"]
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "x"}, "spec": spec}


def test_a_field_that_the_kind_does_not_have_is_refused(kinds: Api, namespace: str) -> None:
    """Else the test above would prove nothing."""
    for target in ("job", "pytorchjob", "trainjob"):
        manifest = render(a_queue(image="image"), a_job(numNodes=2), target).objects[-1]
        manifest["spec"]["replicaCount"] = 2
        with pytest.raises(ApiError, match="replicaCount"):
            accept(kinds, namespace, manifest)
