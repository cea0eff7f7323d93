"""What `render` takes and gives."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestra.api.problem import Problem
from orchestra.plan.where import ETCD_IMAGE
from orchestra.render.yaml_text import to_yaml, without_comments

Target = Literal["statefulset", "job", "pytorchjob", "trainjob", "torchrunjob"]
TARGETS: tuple[Target, ...] = ("statefulset", "job", "pytorchjob", "trainjob", "torchrunjob")

Manifest = dict[str, Any]
"""A Kubernetes object, with comments as in `yaml_text`."""


@dataclass(frozen=True)
class Options:
    """How to render, where the job file does not say."""

    plain: bool = False
    """A shell script instead of the agent, for images that have nothing of ours (not even Python)."""
    image: str | None = None
    """Image, where neither queue nor job names one."""
    sync_image: str | None = None
    """Image with the `aws` program for uploads beside the agent; absent: the job's own."""
    etcd_image: str = ETCD_IMAGE
    """Image of the store that `etcd-v2` needs."""
    ssh: bool = False
    """The image has sshd and Open MPI: a TrainJob for deepspeed uses Kubeflow's MPI runtime."""


@dataclass(frozen=True)
class Unexpressed(Problem):
    """A field that the target cannot express. `kind` is the object that gave it."""

    kind: Literal["TorchrunJob", "TorchrunQueue"] = "TorchrunJob"

    def __str__(self) -> str:
        return super().__str__()


@dataclass
class Rendered:
    """The objects for one job, in the order in which they are to be created."""

    manifests: list[Manifest] = field(default_factory=list)
    warnings: list[Unexpressed] = field(default_factory=list)
    """What the target cannot express, field by field."""
    notes: list[str] = field(default_factory=list)
    """What to know before applying it."""

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The plain objects."""
        return [without_comments(one) for one in self.manifests]

    @property
    def text(self) -> str:
        """All objects as one file of several documents."""
        return "---\n".join(to_yaml(one) for one in self.manifests)

    def files(self) -> dict[str, str]:
        """One file an object, by name."""
        return {file_name(one): to_yaml(one) for one in self.manifests}


def file_name(manifest: Manifest) -> str:
    """`statefulset-myjob.yaml`."""
    name = re.sub(r"[^a-z0-9.-]", "-", str(manifest["metadata"]["name"]).lower())
    return f"{str(manifest['kind']).lower()}-{name}.yaml"


def kustomization(files: list[str], namespace: str | None) -> str:
    """A kustomization of these files, in this order."""
    value: dict[str, Any] = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    if namespace:
        value["namespace"] = namespace
    return to_yaml(value | {"resources": files})
