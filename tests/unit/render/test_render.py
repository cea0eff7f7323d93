"""What each target must have, and what it says it cannot."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from builders import a_cpu_queue, a_job, a_queue
from orchestra.api import Invalid
from orchestra.render import TARGETS, Options, Rendered, Target, render
from orchestra.render.words import escaped, unescaped

KUBERNETES: tuple[Target, ...] = ("statefulset", "job", "pytorchjob", "trainjob")


def rendered(
    target: Target = "statefulset", plain: bool = True, queue: dict[str, Any] | None = None, **job: Any
) -> Rendered:
    return render(
        a_queue(image="image", **(queue or {})), a_job(**({"numNodes": 2} | job)), target, Options(plain=plain)
    )


def one(found: Rendered, kind: str, name: str = "") -> dict[str, Any]:
    return next(o for o in found.objects if o["kind"] == kind and (not name or o["metadata"]["name"] == name))


def pods(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [pod for item in value for pod in pods(item)]
    if not isinstance(value, dict):
        return []
    if "containers" in value.get("spec", {}) and "metadata" in value:
        return [value]
    return [pod for item in value.values() for pod in pods(item)]


def trainer(found: Rendered) -> dict[str, Any]:
    pod = next(
        pod for pod in pods(found.objects) if pod["spec"]["containers"][0]["name"] in ("trainer", "pytorch", "node")
    )
    container: dict[str, Any] = pod["spec"]["containers"][0]
    return container


def env(found: Rendered) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in trainer(found)["env"]}


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_the_same_job_gives_the_same_bytes(target: Target, plain: bool) -> None:
    first, second = rendered(target, plain), rendered(target, plain)
    assert first.text == second.text
    assert list(yaml.safe_load_all(first.text)) == first.objects
    assert list(first.files()) == list(second.files())
    assert len(first.files()) == len(first.objects)


def test_a_statefulset_starts_all_pods_at_once_and_updates_none_by_itself() -> None:
    found = rendered("statefulset")
    spec = one(found, "StatefulSet")["spec"]
    assert (spec["replicas"], spec["podManagementPolicy"], spec["updateStrategy"]) == (
        2,
        "Parallel",
        {"type": "OnDelete"},
    )
    service = one(found, "Service")["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["ports"] == [{"name": "rdzv", "port": 29500}]
    labels = spec["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert (env(found)["NNODES"], env(found)["MASTER_ADDR"]) == ("2", "job-0.job")
    assert env(found)["NODE_RANK"] == {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}


def test_a_job_is_indexed_and_finds_pod_0_by_its_name() -> None:
    found = rendered("job", maxRestarts=3, activeDeadlineSeconds=60, ttlSecondsAfterFinished=5, suspend=True)
    spec = one(found, "Job")["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"], spec["suspend"]) == (
        6,
        60,
        5,
        True,
    )
    assert spec["template"]["spec"]["subdomain"] == one(found, "Service")["metadata"]["name"] == "job"
    assert "--rdzv-endpoint=job-0.job:29500" in one(found, "ConfigMap")["data"]["script.sh"]


def test_the_script_is_executable_and_the_pod_healthy_from_the_start() -> None:
    found = rendered("job")
    volume = next(v for v in pods(found.objects)[0]["spec"]["volumes"] if v["name"] == "programs")
    assert volume["configMap"]["defaultMode"] == 0o755
    assert "cat" in trainer(found)["livenessProbe"]["exec"]["command"]


def test_a_pytorchjob_has_one_master_and_the_rest_workers() -> None:
    replicas = one(rendered("pytorchjob", numNodes=3), "PyTorchJob")["spec"]["pytorchReplicaSpecs"]
    assert {role: spec["replicas"] for role, spec in replicas.items()} == {"Master": 1, "Worker": 2}
    assert replicas["Master"]["template"]["spec"]["containers"][0]["name"] == "pytorch"
    alone = one(rendered("pytorchjob", numNodes=1), "PyTorchJob")["spec"]["pytorchReplicaSpecs"]
    assert list(alone) == ["Master"]


def test_an_elastic_pytorchjob_has_workers_and_a_policy() -> None:
    spec = one(rendered("pytorchjob", elastic={"minNodes": 1, "maxNodes": 4}), "PyTorchJob")["spec"]
    assert list(spec["pytorchReplicaSpecs"]) == ["Worker"]
    policy = spec["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"], policy["rdzvHost"]) == (1, 4, "job-worker-0")


def test_a_trainjob_has_its_own_runtime_and_the_label_that_people_look_for() -> None:
    found = rendered("trainjob")
    job, runtime = one(found, "TrainJob"), one(found, "TrainingRuntime")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert (job["spec"]["trainer"]["numNodes"], job["spec"]["trainer"]["numProcPerNode"]) == (2, 8)
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 2, "torch": {}}
    pod = pods(runtime)[0]
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == "trainjob"
    assert "podAntiAffinity" in pod["spec"]["affinity"]
    assert env(found)["MASTER_ADDR"] == "job-node-0-0.job"


def test_deepspeed_in_a_trainjob_needs_no_ssh() -> None:
    found = rendered("trainjob", command="deepspeed train.py")
    script = one(found, "ConfigMap")["data"]["script.sh"]
    assert "--no_ssh" in script
    assert '"--node_rank=${NODE_RANK}"' in script
    assert one(found, "TrainingRuntime")["spec"]["mlPolicy"] == {"numNodes": 2}


def test_deepspeed_over_ssh_has_a_launcher_that_is_the_first_node() -> None:
    options = Options(plain=True, ssh=True)
    found = render(a_queue(image="i"), a_job(numNodes=3, command="deepspeed train.py"), "trainjob", options)
    spec = one(found, "TrainingRuntime")["spec"]
    assert spec["mlPolicy"]["mpi"]["runLauncherAsNode"]
    jobs = {job["name"]: job["template"]["spec"] for job in spec["template"]["spec"]["replicatedJobs"]}
    assert {name: job["completions"] for name, job in jobs.items()} == {"node": 2, "launcher": 1}
    assert pods(jobs["node"])[0]["spec"]["containers"][0]["command"] == ["/usr/sbin/sshd", "-De"]
    script = one(found, "ConfigMap")["data"]["script.sh"]
    assert "--hostfile=/etc/mpi/hostfile" in script
    assert "--no_ssh" not in script


def test_a_name_that_jobset_would_refuse_later_is_refused_now() -> None:
    queue, name = a_queue(image="image"), "j" * 48
    render(queue, a_job(name, numNodes=10, command="python train.py"), "trainjob")
    with pytest.raises(Invalid, match="at most 47 characters, for --target trainjob"):
        render(queue, a_job(name, numNodes=11), "trainjob")
    render(queue, a_job(name, numNodes=2, command="deepspeed train.py"), "trainjob")
    with pytest.raises(Invalid, match="at most 44 characters"):
        render(queue, a_job(name, numNodes=2, command="deepspeed train.py"), "trainjob", Options(ssh=True))


def test_ssh_where_it_means_nothing_is_a_note() -> None:
    job = a_job(numNodes=2, command="deepspeed train.py")
    for target in TARGETS:
        notes = " ".join(render(a_queue(image="image"), job, target, Options(ssh=True)).notes)
        assert ("--ssh changes nothing" in notes) == (target not in ("trainjob", "torchrunjob"))


@pytest.mark.parametrize("target", KUBERNETES)
def test_etcd_without_an_endpoint_brings_its_etcd(target: Target) -> None:
    found = rendered(target, distributed={"rdzvBackend": "etcd-v2"})
    deployment = one(found, "Deployment", "job-rdzv")
    assert "--enable-v2=true" in pods(deployment)[0]["spec"]["containers"][0]["command"]
    assert "--rdzv-endpoint=job-rdzv:2379" in one(found, "ConfigMap")["data"]["script.sh"]
    given = rendered(target, distributed={"rdzvBackend": "etcd-v2", "rdzvEndpoint": "mine:2379"})
    assert "Deployment" not in [o["kind"] for o in given.objects]


@pytest.mark.parametrize("target", KUBERNETES)
def test_the_agent_is_process_1_from_one_shared_immutable_configmap(target: Target) -> None:
    found = rendered(target, plain=False)
    agents = [o for o in found.objects if o["metadata"]["name"].startswith("orchestra-agent-")]
    assert len(agents) == 1
    assert agents[0]["immutable"]
    assert trainer(found)["command"] == ["python3", "/opt/orchestra/start.py", "/opt/orchestra/launch.json"]


def test_older_spellings_of_the_token_become_hf_token() -> None:
    found = rendered(secrets=[{"name": "hf-token", "key": "HUGGINGFACE_HUB_TOKEN"}])
    assert env(found)["HF_TOKEN"] == {"secretKeyRef": {"name": "hf-token", "key": "HUGGINGFACE_HUB_TOKEN"}}


def test_kubernetes_expands_nothing_that_the_user_wrote() -> None:
    found = rendered(env=[{"name": "A", "value": "$(NNODES) $$ $X"}])
    assert env(found)["A"] == "$$(NNODES) $$$ $X"
    for text in ("$(A)", "$$(A)", "$$", "$", "$$$(A)", "a$b"):
        assert unescaped(escaped(text)) == text


def test_volumes_lie_where_people_expect_them() -> None:
    storage = {
        "shmSizePerGPU": "1Gi",
        "datasets": {"claimName": "datasets-pvc"},
        "checkpoints": {"claimName": "outputs-pvc"},
        "models": {"sizePerGPU": "1Gi"},
    }
    found = rendered(queue={"storage": storage})
    assert {m["mountPath"] for m in trainer(found)["volumeMounts"]} >= {"/data", "/out", "/models", "/dev/shm"}
    assert one(found, "PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"] == "16Gi"
    shm = next(v for v in pods(found.objects)[0]["spec"]["volumes"] if v["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}


def test_spread_is_a_rule_and_otherwise_a_wish() -> None:
    def anti(**scheduling: Any) -> list[str]:
        spec = pods(rendered(queue={"scheduling": scheduling}).objects)[0]["spec"]
        return list(spec.get("affinity", {}).get("podAntiAffinity", {}))

    assert anti(spread=True) == ["requiredDuringSchedulingIgnoredDuringExecution"]
    assert anti() == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert anti(spread=False) == []


def test_uploads_beside_the_agent_are_a_sidecar() -> None:
    found = rendered("job", plain=False, sync={"output": "s3://bucket/out", "secretName": "s3"})
    sidecar = pods(found.objects)[0]["spec"]["initContainers"][0]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("upload", "Always")
    assert sidecar["envFrom"] == [{"secretRef": {"name": "s3"}}]


@pytest.mark.parametrize(
    ("target", "plain", "job", "field"),
    [
        ("statefulset", False, {"activeDeadlineSeconds": 60}, "spec.activeDeadlineSeconds"),
        (
            "statefulset",
            False,
            {"lifecycle": {"ttlSecondsAfterFinished": 60}},
            "spec.lifecycle.ttlSecondsAfterFinished",
        ),
        ("trainjob", False, {"ttlSecondsAfterFinished": 60}, "spec.ttlSecondsAfterFinished"),
        ("statefulset", False, {"suspend": True}, "spec.suspend"),
        ("job", False, {"elastic": {"minNodes": 1, "maxNodes": 4}}, "spec.elastic"),
        ("job", True, {"lifecycle": {"hangTimeoutSeconds": 60}}, "spec.lifecycle.hangTimeoutSeconds"),
        ("job", False, {"lifecycle": {"nodeLostSeconds": 60}}, "spec.lifecycle.nodeLostSeconds"),
        ("job", False, {"workspace": {"source": "local"}}, "spec.workspace"),
        ("job", False, {"sync": {"data": "gs://bucket"}}, "spec.sync.data"),
    ],
)
def test_what_a_target_cannot_express_is_a_warning_that_names_the_field(
    target: Target, plain: bool, job: dict[str, Any], field: str
) -> None:
    assert [warning.path for warning in rendered(target, plain, **job).warnings] == [field]
    with pytest.raises(Invalid, match=field):
        render(a_queue(image="i"), a_job(**({"numNodes": 2} | job)), target, Options(plain=plain), strict=True)


@pytest.mark.parametrize("target", KUBERNETES)
def test_a_plain_job_is_expressed_by_all_without_a_warning(target: Target) -> None:
    assert rendered(target, plain=False).warnings == []


def test_an_image_is_needed_and_may_come_from_outside() -> None:
    with pytest.raises(Invalid, match="image"):
        render(a_cpu_queue(), a_job(), "job")
    found = render(a_cpu_queue(), a_job(), "job", Options(image="given"))
    assert trainer(found)["image"] == "given"


def test_our_own_kinds_in_their_normal_form() -> None:
    found = rendered("torchrunjob", restartPolicy="Never", ttlSecondsAfterFinished=5)
    assert [o["kind"] for o in found.objects] == ["TorchrunQueue", "TorchrunJob"]
    assert found.objects[1]["spec"]["lifecycle"] == {"restartPolicy": "Never", "ttlSecondsAfterFinished": 5}
    assert "restartPolicy" not in found.objects[1]["spec"]


@pytest.mark.parametrize(
    ("target", "kind"),
    [("statefulset", "StatefulSet"), ("job", "Job"), ("pytorchjob", "PyTorchJob"), ("trainjob", "TrainJob")],
)
def test_the_jobs_own_labels_and_annotations_go_along(target: Target, kind: str) -> None:
    job = a_job(numNodes=2, labels={"team": "a"}, annotations={"note": "b"})
    job.metadata.labels = {"owner": "c", "torchrun-job-name": "not this"}
    job.metadata.annotations = {"why": "d"}
    found = one(render(a_queue(image="i"), job, target), kind)["metadata"]
    assert {"team": "a", "owner": "c", "torchrun-job-name": "job"}.items() <= found["labels"].items()
    assert found["annotations"] == {"why": "d", "note": "b"}
