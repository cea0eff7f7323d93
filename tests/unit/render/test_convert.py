"""Manifests as people wrote them before: sensible jobs, and nothing silently lost."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from orchestra.api import Invalid
from orchestra.api.base import to_builtins
from orchestra.plan import plan
from orchestra.render.convert import Converted, convert, convert_command

SERVICE_AND_STATEFUL_SET = """\
apiVersion: v1
kind: Service
metadata:
  name: train-rdzv
  labels:
    app: train-llm
spec:
  clusterIP: None   # headless
  selector:
    app: train-llm
  ports:
    - name: rdzv
      port: 29500
      targetPort: 29500
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: train-llm, labels: {app: train-llm}}
spec:
  serviceName: train-rdzv
  replicas: 4
  revisionHistoryLimit: 3
  selector: {matchLabels: {app: train-llm}}
  template:
    metadata: {labels: {app: train-llm}}
    spec:
      topologySpreadConstraints:
        - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: train-llm}}}
      containers:
        - name: trainer
          image: registry/train:1
          command: [bash, -lc]
          args:
            - |
              export RANK="${HOSTNAME##*-}"
              torchrun --nnodes=$NNODES --node_rank=$RANK \\
                --nproc_per_node=$NPROC_PER_NODE --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT \\
                k8s-training/k8s/train.py --epochs 2 --batch 256 --lr 3e-3 --seed 42
          env:
            - {name: NNODES, value: "4"}
            - {name: NPROC_PER_NODE, value: "1"}
            - {name: MASTER_ADDR, value: train-rdzv}
            - {name: MASTER_PORT, value: "29500"}
            - {name: NCCL_DEBUG, value: INFO}
            - {name: NCCL_SOCKET_IFNAME, value: eth0}
            - {name: TORCH_NCCL_ASYNC_ERROR_HANDLING, value: "1"}
            - name: HUGGINGFACE_HUB_TOKEN
              valueFrom: {secretKeyRef: {name: hf-token, key: HUGGINGFACE_HUB_TOKEN, optional: true}}
          resources: {limits: {nvidia.com/gpu: 1}}
          volumeMounts:
            - {name: data, mountPath: /data}
            - {name: out, mountPath: /out}
            - {name: models, mountPath: /models}
      volumes:
        - {name: data, persistentVolumeClaim: {claimName: datasets-pvc}}
        - {name: out, persistentVolumeClaim: {claimName: outputs-pvc}}
        - {name: models, persistentVolumeClaim: {claimName: models-pvc}}
"""

OLDER_TRAIN_JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: myllm-sft-h100-distributed-job, namespace: default}
spec:
  trainingRuntime: deepspeed-distributed
  replicas: 2
  replicaSpecs:
    launcher:
      replicas: 1
      template:
        metadata: {labels: {app.kubernetes.io/name: trainjob}}
        spec:
          affinity:
            podAntiAffinity:
              requiredDuringSchedulingIgnoredDuringExecution:
                - labelSelector: {matchLabels: {app.kubernetes.io/name: trainjob}}
                  topologyKey: kubernetes.io/hostname
          containers:
            - name: launcher
              image: your-registry/myllm-framework:latest
              command: [deepspeed, --num_gpus, "4", train.py, --config, configs/sft.yaml]
              resources: {limits: {nvidia.com/gpu: 4}}
    worker:
      replicas: 1
      template:
        metadata: {labels: {app.kubernetes.io/name: trainjob}}
        spec:
          containers:
            - name: worker
              image: your-registry/myllm-framework:latest
              resources: {limits: {nvidia.com/gpu: 4}}
"""

JOB_WITH_A_SCRIPT = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: customgpt-job
  labels: {batch-size: "1200"}
spec:
  backoffLimit: 2
  template:
    metadata: {labels: {job-name: customgpt-job}}
    spec:
      serviceAccountName: default-editor
      restartPolicy: OnFailure
      terminationGracePeriodSeconds: 30
      volumes:
        - {name: user-home, emptyDir: {}}
        - {name: shm, emptyDir: {medium: Memory, sizeLimit: 4Gi}}
        - {name: script-volume, configMap: {name: script-configmap}}
      containers:
        - name: customgpt
          image: your-docker-image
          resources:
            requests: {cpu: "4", memory: 32Gi, nvidia.com/gpu: "4"}
            limits: {cpu: "8", memory: 64Gi, nvidia.com/gpu: "4"}
          env:
            - {name: TARGET, value: "Python Sample v3"}
          volumeMounts:
            - {name: user-home, mountPath: /home/role}
            - {name: shm, mountPath: /dev/shm}
            - {name: script-volume, mountPath: /home/role/code/script.sh, subPath: script.sh, readOnly: true}
          command:
            - /bin/bash
            - -c
            - |
              chmod +x /home/role/code/script.sh
              /home/role/code/script.sh
          livenessProbe: {exec: {command: [cat, /tmp/healthy]}, initialDelaySeconds: 120}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: script-configmap}
data:
  script.sh: |
    #!/bin/bash
    exec > >(tee -i /home/role/code/log.txt) 2>&1
    set -xe
    touch /tmp/ready
    echo "Current directory: $PWD"
    # Variables for S3 paths and local directories
    S3_CODE_SRC="s3://bucket/code/"
    S3_DATA_SRC="s3://bucket/data/"
    S3_OUTPUT_DIR="s3://bucket/output/"
    LOCAL_CODE_DIR="/home/role/code/"
    LOCAL_DATA_DIR="/home/role/code/data/"
    LOCAL_OUTPUT_DIR="/home/role/code/out/"
    ENV_NAME="gpt-env"
    PYTHON_VERSION="3.9"
    aws s3 sync "$S3_CODE_SRC" "$LOCAL_CODE_DIR"
    aws s3 sync "$S3_DATA_SRC" "$LOCAL_DATA_DIR"
    ls -R "$LOCAL_CODE_DIR"
    source "$(conda info --base)/etc/profile.d/conda.sh"
    conda create -n "$ENV_NAME" python="$PYTHON_VERSION" -y
    conda activate "$ENV_NAME"
    pip install -r "$LOCAL_CODE_DIR/requirements.txt"
    export NCCL_DEBUG=INFO
    mkdir -p "$LOCAL_OUTPUT_DIR"
    aws s3 sync "$S3_OUTPUT_DIR/out/" "$LOCAL_OUTPUT_DIR"
    sync_outputs() {
      while true; do
        sleep 300  # Sync every 5 minutes
        aws s3 sync "$LOCAL_OUTPUT_DIR" "$S3_OUTPUT_DIR/out/"
      done
    }
    sync_outputs &
    torchrun --standalone --nproc_per_node=4 "$LOCAL_CODE_DIR/train.py" --output_dir "$LOCAL_OUTPUT_DIR"
    pkill -f sync_outputs
    touch /tmp/healthy
    aws s3 sync "$LOCAL_OUTPUT_DIR" "$S3_OUTPUT_DIR/out/"
    aws s3 cp "$LOCAL_CODE_DIR/log.txt" "$S3_OUTPUT_DIR/log.txt"
"""

PYTORCH_JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: ftjb}
spec:
  runPolicy: {cleanPodPolicy: Running, backoffLimit: 5}
  pytorchReplicaSpecs:
    Master: &role
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              image: trainer-huggingface:test
              command: [bash, -c]
              args:
                - cd /app && torchrun --nnodes=2 --node_rank=$RANK --nproc_per_node=1 --master_addr=ftjb-master-0
                  --master_port=23456 model_train_lora.py --output_dir /workspace/output --local_files_only
              envFrom: [{secretRef: {name: hf-secrets}}]
              env:
                - {name: MODEL_URI, value: "hf://meta-llama/Llama-3.2-1B-Instruct"}
              resources: {limits: {nvidia.com/gpu: 1}}
    Worker: *role
"""

TRAIN_JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: sft}
spec:
  runtimeRef: {name: deepspeed-distributed, kind: TrainingRuntime}
  trainer:
    image: framework:latest
    numNodes: 2
    command: [deepspeed, --num_gpus, "4", train.py, --config, sft.yaml]
    resourcesPerNode: {limits: {nvidia.com/gpu: "4"}}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: deepspeed-distributed}
spec:
  mlPolicy: {numNodes: 1}
  template:
    spec:
      replicatedJobs:
        - name: node
          replicas: 1
          template:
            metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
            spec:
              template:
                spec:
                  tolerations: [{key: gpu, operator: Exists}]
                  containers: [{name: node, image: runtime:1, env: [{name: A, value: b}]}]
"""


def converted(text: str) -> Converted:
    found = convert(list(yaml.safe_load_all(text)))
    plan(found.queue, found.job)  # whatever comes out can run
    return found


def spec(one: Any) -> dict[str, Any]:
    plain: dict[str, Any] = to_builtins(one.spec)
    return plain


def test_a_statefulset_and_its_service() -> None:
    found = converted(SERVICE_AND_STATEFUL_SET)
    job, queue = spec(found.job), spec(found.queue)
    assert job["numNodes"] == 4
    assert job["command"][:2] == ["torchrun", "k8s-training/k8s/train.py"]
    assert {one["name"]: one.get("value") for one in job["env"]} == {
        "HUGGINGFACE_HUB_TOKEN": None,
        "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "eth0",
    }
    assert queue["nodeResources"] == {"gpus": 1}
    assert queue["storage"]["checkpoints"]["claimName"] == "outputs-pvc"
    assert "topologySpreadConstraints" in queue["scheduling"]
    assert (found.guessed, found.left_out) == ([], ["StatefulSet: spec.revisionHistoryLimit"])


def test_a_job_whose_script_comes_from_a_configmap() -> None:
    found = converted(JOB_WITH_A_SCRIPT)
    job, queue = spec(found.job), spec(found.queue)
    assert job["command"] == ["torchrun", "/home/role/code/train.py", "--output_dir", "/out/"]
    assert job["sync"] == {
        "code": "s3://bucket/code/",
        "data": "s3://bucket/data/",
        "output": "s3://bucket/output/out/",
        "interval": 300,
    }
    assert job["environment"] == {
        "requirements": "/home/role/code/requirements.txt",
        "manager": "conda",
        "python": "3.9",
    }
    assert {one["name"]: one["value"] for one in job["env"]} == {"TARGET": "Python Sample v3", "NCCL_DEBUG": "INFO"}
    assert (queue["nodeResources"]["gpus"], queue["storage"]["shmSizePerGPU"]) == (4, "1Gi")
    assert queue["lifecycle"] == {"maxRestarts": 2, "gracePeriodSeconds": 30}
    assert [volume["name"] for volume in job["volumes"]] == ["user-home"]
    assert len(found.left_out) == 2
    assert any("livenessProbe" in line for line in found.left_out)
    assert any("log.txt" in line for line in found.left_out)
    assert any("limit 8" in line for line in found.guessed)


def test_a_pytorchjob_with_master_and_worker() -> None:
    found = converted(PYTORCH_JOB)
    job = spec(found.job)
    assert job["numNodes"] == 2
    assert job["command"] == [
        "torchrun",
        "model_train_lora.py",
        "--output_dir",
        "/workspace/output",
        "--local_files_only",
    ]
    assert (job["workingDir"], job["distributed"]["port"]) == ("/app", 23456)
    assert job["envFrom"] == [{"secretRef": {"name": "hf-secrets"}}]
    assert found.queue.spec.lifecycle is not None
    assert found.queue.spec.lifecycle.max_restarts == 5
    assert found.left_out == ["PyTorchJob ftjb: spec.runPolicy.cleanPodPolicy"]


def test_a_trainjob_is_laid_over_its_runtime() -> None:
    found = converted(TRAIN_JOB)
    job, queue = spec(found.job), spec(found.queue)
    assert (job["numNodes"], job["command"]) == (2, ["deepspeed", "train.py", "--config", "sft.yaml"])
    assert (queue["image"], queue["nodeResources"]) == ("framework:latest", {"gpus": 4})
    assert queue["scheduling"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert job["env"] == [{"name": "A", "value": "b"}]
    assert found.left_out == ["TrainingRuntime deepspeed-distributed: spec.template.spec.replicatedJobs[0].replicas"]


def test_a_trainjob_without_its_runtime_says_what_is_unknown() -> None:
    manifests = list(yaml.safe_load_all(TRAIN_JOB))[:1]
    assert any("deepspeed-distributed is not among the files" in line for line in convert(manifests).guessed)


def test_a_trainjob_in_the_spelling_of_older_texts() -> None:
    found = converted(OLDER_TRAIN_JOB)
    job, queue = spec(found.job), spec(found.queue)
    assert (job["numNodes"], job["command"]) == (2, ["deepspeed", "train.py", "--config", "configs/sft.yaml"])
    assert (queue["image"], queue["nodeResources"]) == ("your-registry/myllm-framework:latest", {"gpus": 4})
    assert queue["scheduling"] == {"spread": True}
    assert found.left_out == []
    assert any("an older TrainJob" in line and "deepspeed-distributed" in line for line in found.guessed)
    planned = plan(found.queue, found.job)
    assert (planned.node_count, planned.procs_per_node, planned.launch.launcher) == (2, 4, "deepspeed")


@pytest.mark.parametrize("kind", ["PyTorchJob", "TrainJob"])
def test_a_job_in_which_nobody_trains_is_refused(kind: str) -> None:
    group, field = ("kubeflow.org/v1", "pytorchReplicaSpecs") if kind == "PyTorchJob" else (
        "trainer.kubeflow.org/v1alpha1", "replicaSpecs")  # fmt: skip
    manifest = {"apiVersion": group, "kind": kind, "metadata": {"name": "a"}, "spec": {field: {}}}
    with pytest.raises(Invalid, match="nobody trains here"):
        convert([manifest])


@pytest.mark.parametrize(
    ("line", "nodes", "procs", "command"),
    [
        ("torchrun --standalone --nproc_per_node=4 train.py --lr 1", 1, 4, ["torchrun", "train.py", "--lr", "1"]),
        ("torchrun --nnodes 3 --nproc-per-node 8 --tee 3 -m a.b", 3, 8, ["torchrun", "--tee", "3", "-m", "a.b"]),
        (
            "python -m torch.distributed.run --nproc-per-node=2 t.py",
            1,
            2,
            ["python", "-m", "torch.distributed.run", "t.py"],
        ),
        (
            "deepspeed --num_gpus 2 train.py --deepspeed ds.json",
            1,
            2,
            ["deepspeed", "train.py", "--deepspeed", "ds.json"],
        ),
        ("python train.py", 1, 1, ["python", "train.py"]),
    ],
)
def test_a_launch_line(line: str, nodes: int, procs: int, command: list[str]) -> None:
    found = convert_command(line)
    planned = plan(found.queue, found.job)
    assert (planned.node_count, planned.procs_per_node, found.job.spec.command) == (nodes, procs, command)


def test_an_elastic_launch_line() -> None:
    found = convert_command("torchrun --nnodes=1:4 --nproc-per-node=2 --max-restarts=7 train.py")
    assert to_builtins(found.job.spec)["elastic"] == {"maxNodes": 4}
    assert found.queue.spec.lifecycle is not None
    assert found.queue.spec.lifecycle.max_restarts == 7


def test_every_unknown_field_is_listed() -> None:
    manifests = list(yaml.safe_load_all(SERVICE_AND_STATEFUL_SET))
    manifests[1]["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "x"}, "spec": {"a": 1}}]
    manifests.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "v"}})
    left = convert(manifests).left_out
    assert "StatefulSet train-llm: spec.volumeClaimTemplates[0].spec.a" in left
    assert "Secret s: not part of a job; keep it if the job refers to it" in left


def test_a_runtime_patch_is_laid_over_the_pods() -> None:
    manifests = list(yaml.safe_load_all(TRAIN_JOB))
    pod = {"spec": {"nodeSelector": {"pool": "a"}}}
    job_set = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": pod}}}], "other": {}}
    patch = {
        "manager": "me",
        "trainingRuntimeSpec": {"template": {"metadata": {"labels": {"team": "x"}}, "spec": job_set}},
    }
    manifests[0]["spec"]["runtimePatches"] = [patch]
    found = convert(manifests)
    assert spec(found.queue)["scheduling"]["nodeSelector"] == {"pool": "a"}
    assert found.job.spec.labels == {"team": "x"}
    assert "runtimePatches of me: trainingRuntimeSpec.template.spec.other" in found.left_out


def test_an_empty_object_says_something_and_is_not_lost() -> None:
    manifests = list(yaml.safe_load_all(TRAIN_JOB))
    manifests[1]["spec"]["podGroupPolicy"] = {"volcano": {}}
    manifests[1]["spec"]["mlPolicy"]["jax"] = {}
    left = convert(manifests).left_out
    assert "TrainingRuntime deepspeed-distributed: spec.podGroupPolicy.volcano" in left
    assert "mlPolicy.jax" in left


def test_what_a_pod_has_beyond_our_words_is_passed_on() -> None:
    manifests = list(yaml.safe_load_all(SERVICE_AND_STATEFUL_SET))
    pod = manifests[1]["spec"]["template"]["spec"]
    pod["hostAliases"] = [{"ip": "10.0.0.1", "hostnames": ["x"]}]
    pod["containers"][0]["stdin"] = True
    pod["containers"].append({"name": "proxy", "image": "proxy:1"})
    template = spec(convert(manifests).queue)["podTemplate"]["spec"]
    assert template["hostAliases"] == pod["hostAliases"]
    assert template["containers"] == [{"name": "trainer", "stdin": True}, {"name": "proxy", "image": "proxy:1"}]


def test_arguments_without_a_command_are_the_images_secret() -> None:
    manifests = list(yaml.safe_load_all(PYTORCH_JOB))
    for role in manifests[0]["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["containers"][0].pop("command", None)
    assert any("image's own" in line for line in convert(manifests).guessed)


@pytest.mark.parametrize("manifests", [[], [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}]])
def test_no_workload_is_an_error(manifests: list[dict[str, Any]]) -> None:
    with pytest.raises(Invalid, match="expected"):
        convert(manifests)
