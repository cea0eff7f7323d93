"""Kubeflow Trainer with JobSet as a contender, where somebody brings their programs (see `testbed.kubeflow`)."""

from __future__ import annotations

from typing import Any

from testbed.kubeflow import KubeflowError, trainer, trainer_assets

Json = dict[str, Any]
CONTROLLER_MANAGER = ("--concurrent-job-syncs=25",)
LABEL = "jobset.sigs.k8s.io/jobset-name"

running = trainer
"""Both controllers on a control plane; gives their pids by name."""


def available() -> bool:
    """Whether they can be measured; says why not."""
    try:
        trainer_assets()
    except KubeflowError as error:
        print(f"Kubeflow: not measured ({error})")
        return False
    return True


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
