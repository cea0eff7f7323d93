"""Kinds that only queues care about, as slim structs."""

from __future__ import annotations

import msgspec

from orchestra.kube.cache import Cache
from orchestra.kube.objects import Metadata, Resource, Slim
from orchestra.operator.claims import StorageClass

KAI_QUEUES = Resource("scheduling.run.ai", "v2", "Queue", "queues", namespaced=False)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False)


class PriorityClass(Slim, frozen=True):
    """Who goes first."""

    metadata: Metadata
    value: int = 0
    global_default: bool = False


class KaiShare(msgspec.Struct, frozen=True, rename="camel"):
    """KAI's own share of one resource. What is absent means 0 to KAI, so all is always written. -1 is unlimited."""

    quota: float = 0
    limit: float = 0
    over_quota_weight: float = 0


class KaiResources(msgspec.Struct, frozen=True):
    """GPUs, CPUs in millicores, memory in 10^6 bytes."""

    gpu: KaiShare = KaiShare()
    cpu: KaiShare = KaiShare()
    memory: KaiShare = KaiShare()


class KaiQueueSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What we write of a KAI Queue."""

    parent_queue: str = ""
    resources: KaiResources = KaiResources()


class KaiQueue(Slim, frozen=True):
    """A KAI Queue."""

    metadata: Metadata
    spec: KaiQueueSpec = KaiQueueSpec()

    def annotation(self, name: str) -> str:
        """An annotation, or nothing."""
        return (self.metadata.annotations or {}).get(name, "")


class PodGroupSpec(Slim, frozen=True):
    """Which KAI Queue it is in."""

    queue: str = ""


class PodGroup(Slim, frozen=True):
    """A KAI PodGroup."""

    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()


class Classes:
    """The cluster's PriorityClasses and StorageClasses. None where the operator may not look (Roles only)."""

    def __init__(self, priorities: Cache[PriorityClass] | None, storage: Cache[StorageClass] | None) -> None:
        self.priorities, self.storage = priorities, storage

    def priority(self, name: str | None) -> int:
        """The value of a class, by name; without one the cluster's default; 0 where nobody knows."""
        for one in self.priorities or ():
            if one.metadata.name == name or (name is None and one.global_default):
                return one.value
        return 0
