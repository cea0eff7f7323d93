"""Claims that all nodes of a job share, where most storage classes cannot give them. Pure.

No API tells beforehand whether a class can do ReadWriteMany. So: the administrator's word on the class comes first,
then a list of provisioners known to hand out one node's disk, then what a class has refused before. A workspace then
lies on each node by itself; checkpoints that the nodes cannot share are no checkpoints, and are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from orchestra.api.job import TorchrunJob
from orchestra.api.problem import Problem
from orchestra.kube.objects import Metadata, Slim
from orchestra.operator import conditions
from orchestra.operator.kinds import JOB_LABEL
from orchestra.operator.moving import SHARED, own_workspace
from orchestra.plan import Plan
from orchestra.plan.model import Volume

RETAINED_LABEL = "torchrun.ai/retained"
CAN_SHARE = "torchrun.ai/read-write-many"
"""Annotation of a StorageClass: the administrator's word, `true` or `false`."""
WORKSPACE = "WorkspaceShared"

_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_ONE_NODE_ONLY = frozenset(
    {
        "ebs.csi.aws.com", "kubernetes.io/aws-ebs", "pd.csi.storage.gke.io", "kubernetes.io/gce-pd",
        "disk.csi.azure.com", "kubernetes.io/azure-disk", "kubernetes.io/no-provisioner", "rancher.io/local-path",
        "docker.io/hostpath", "k8s.io/minikube-hostpath", "openebs.io/local", "local.csi.openebs.io", "topolvm.io",
        "cinder.csi.openstack.org", "kubernetes.io/cinder", "csi.hetzner.cloud", "dobs.csi.digitalocean.com",
        "linodebs.csi.linode.com", "block.csi.vultr.com", "diskplugin.csi.alibabacloud.com",
    }
)  # fmt: skip
_ABOUT_SHARING = re.compile(r"ReadWriteMany|MULTI_NODE|access ?modes?|RWX", re.IGNORECASE)


class StorageClass(Slim, frozen=True):
    """What is read of a StorageClass."""

    metadata: Metadata
    provisioner: str = ""

    def annotation(self, name: str) -> str:
        """An annotation, or nothing."""
        return (self.metadata.annotations or {}).get(name, "")


class ClaimSpec(Slim, frozen=True):
    """What is read of a claim's spec."""

    storage_class_name: str = ""
    access_modes: tuple[str, ...] = ()


class ClaimStatus(Slim, frozen=True):
    """Whether it has a volume."""

    phase: str = "Pending"


class ClaimObject(Slim, frozen=True):
    """A PersistentVolumeClaim."""

    metadata: Metadata
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


def is_refusal(message: str) -> bool:
    """Whether a provisioner's failure is about sharing, and so will never pass."""
    return _ABOUT_SHARING.search(message) is not None


def why_not_shared(known: StorageClass) -> str | None:
    """Why a class cannot give a volume to several nodes; None as far as anybody knows."""
    word = known.annotation(CAN_SHARE)
    if word:
        return None if word == "true" else f"its annotation {CAN_SHARE} says so"
    return f"{known.provisioner} gives one node's disk" if known.provisioner in _ONE_NODE_ONLY else None


def default_class(classes: Iterable[StorageClass]) -> str | None:
    """The class of claims that name none."""
    found = (one.metadata.name for one in classes if one.annotation(_DEFAULT) == "true")
    return next(found, None)


Knowledge = Callable[[str | None], tuple[str, str] | None]
"""A class by name (None: the default one) -> its name and why it cannot share; None when it can, or nobody knows."""


def shared_volumes(plan: Plan) -> list[Volume]:
    """Those that are made for the job and that several nodes mount."""
    made = [volume for volume in plan.volumes if not volume.exists and SHARED in volume.access_modes]
    return [volume for volume in made if not (volume.purpose == "workspace" and own_workspace(plan))]


def adapted(plan: Plan, knowledge: Knowledge) -> tuple[Plan, list[Problem]]:
    """The plan with what its storage classes can do, or why that is not enough."""
    refused = {
        volume.purpose: said for volume in shared_volumes(plan) if (said := knowledge(volume.storage_class)) is not None
    }
    if not refused:
        return plan, []
    problems = [
        Problem(
            f"spec.storage.{purpose}",
            f"StorageClass {name} cannot share a volume among {plan.max_nodes} nodes ({SHARED}): {why}",
            "name a storageClass that can, send it to sync.output instead, or run on one node",
        )
        for purpose, (name, why) in refused.items()
        if purpose != "workspace"
    ]
    volumes = [
        msgspec.structs.replace(volume, on_each_node=True) if volume.purpose in refused else volume
        for volume in plan.volumes
    ]
    return msgspec.structs.replace(plan, volumes=volumes), problems


def as_started(plan: Plan, job: TorchrunJob) -> Plan:
    """The plan of an attempt under way: what its workspace was when it started, whatever was found out since."""
    if conditions.condition_of(job, WORKSPACE) is None:
        return plan
    volumes = [
        msgspec.structs.replace(volume, on_each_node=True) if volume.purpose == "workspace" else volume
        for volume in plan.volumes
    ]
    return msgspec.structs.replace(plan, volumes=volumes)


def waited_for(plan: Plan) -> tuple[str, ...]:
    """Claims that an attempt of this plan cannot run without, and that may be refused for being shared."""
    return tuple(volume.claim for volume in shared_volumes(plan) if not volume.on_each_node)


def told(job: TorchrunJob, plan: Plan, now: float) -> TorchrunJob:
    """The job with a word about a workspace that its nodes do not share."""
    apart = [volume for volume in plan.volumes if volume.on_each_node]
    if not apart:
        return conditions.without_condition(job, WORKSPACE)
    where = apart[0].storage_class or "the default StorageClass"
    message = (
        f"{where} cannot share a volume among {plan.max_nodes} nodes: each node has a copy of the workspace of its own "
        f"in {apart[0].mount_path}, gone with its pod; keep what should stay in checkpoints or sync.output"
    )
    return conditions.with_condition(job, WORKSPACE, "False", "NoReadWriteMany", message, now)


def is_kept(claim: Metadata, plan: Plan) -> bool:
    """Whether a claim that is not ours is one that an earlier job of this name left on purpose."""
    labels = claim.labels or {}
    wanted = any(volume.retain and volume.claim == claim.name for volume in plan.volumes)
    return wanted and labels.get(RETAINED_LABEL) == "true" and labels.get(JOB_LABEL) == plan.job
