"""TorchrunQueue: a template for jobs, with quotas."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from orchestra.api.base import Count, Model, Name, Text
from orchestra.api.kubernetes import Condition, ObjectMeta
from orchestra.api.quantity import Quantity
from orchestra.api.template import Template

UNLIMITED = Quantity(-1)


class ResourceShare(Model):
    """A queue's share of one resource. -1 is unlimited."""

    quota: Quantity = UNLIMITED
    """What the queue is entitled to."""
    limit: Quantity = UNLIMITED
    """What it may use at most, while others leave it free."""
    over_quota_weight: Annotated[int, Meta(ge=0, le=1000000)] = 1
    """Its weight when free resources are shared out."""


class QueueResources(Model):
    """Quotas of the queue."""

    gpu: ResourceShare = field(default_factory=ResourceShare)
    """GPUs."""
    cpu: ResourceShare = field(default_factory=ResourceShare)
    """CPUs."""
    memory: ResourceShare = field(default_factory=ResourceShare)
    """Memory."""


class TorchrunQueueSpec(Template):
    """How jobs of this queue are made, and how much they may use."""

    kai_queue: Name | None = None
    """Name of the KAI scheduler queue; it is created when it does not exist."""
    parent_kai_queue: Name = "default"
    """Its parent; created when missing, never changed."""
    resources: QueueResources = field(default_factory=QueueResources)
    """Quotas, for KAI and for the operator where no scheduler enforces them."""
    overrides_allowed: Annotated[list[Text], Meta(max_length=128)] | None = None
    """Field paths that a job may change. Absent: all but service account, securityContext, hostNetwork,
    hostPath and privileged settings; those are allowed only when named here."""


class QueueJobs(Model):
    """Jobs of the queue."""

    pending: Count = 0
    """Waiting."""
    running: Count = 0
    """Running."""


class QueueGpus(Model):
    """GPUs of the queue."""

    used: Count = 0
    """In use now."""
    quota: int = -1
    """What it is entitled to; -1 is unlimited."""


class TorchrunQueueStatus(Model):
    """What the operator found."""

    phase: Literal["Ready", "Degraded", "Invalid", "Deleting"] | None = None
    """In one word."""
    conditions: list[Condition] = []
    """In sentences."""
    kai_queue: Text | None = None
    """The KAI queue that this one uses."""
    jobs: QueueJobs | None = None
    """Jobs in it."""
    gpus: QueueGpus | None = None
    """GPUs in use."""
    observed_generation: int | None = None
    """The generation this was said about."""


class TorchrunQueue(Model, kw_only=True):
    """A template for training jobs: image, node size, storage, scheduling, quotas."""

    api_version: str = "torchrun.ai/v1alpha1"
    kind: str = "TorchrunQueue"
    metadata: ObjectMeta
    spec: TorchrunQueueSpec
    """How jobs of this queue are made."""
    status: TorchrunQueueStatus | None = None
    """What the operator found."""
