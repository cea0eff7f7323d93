"""The kinds that the engine reads: ours whole, others' as far as `logs`, `why` and `doctor` look at them."""

from __future__ import annotations

import msgspec

from orchestra.api.base import decode_hook
from orchestra.api.job import TorchrunJob, TorchrunJobSpec, TorchrunJobStatus
from orchestra.api.kubernetes import ObjectMeta
from orchestra.api.labels import SUBMITTED_ANNOTATION
from orchestra.api.queue import TorchrunQueue
from orchestra.kube import pods as kube
from orchestra.kube.objects import Metadata, Resource, Slim
from orchestra.plan.job_pods import JobPod
from orchestra.plan.status import seconds_of

JOBS = Resource("torchrun.ai", "v1alpha1", "TorchrunJob", "torchrunjobs")
QUEUES = Resource("torchrun.ai", "v1alpha1", "TorchrunQueue", "torchrunqueues")
CORE_EVENTS = Resource("", "v1", "Event", "events")
"""The same events as in events.k8s.io, with the field selectors that the newer group lacks."""
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False)
QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")

GPU = "nvidia.com/gpu"
TRAINERS = ("trainer", "pytorch", "node", "launcher")

_jobs = msgspec.json.Decoder(TorchrunJob, dec_hook=decode_hook)
_queues = msgspec.json.Decoder(TorchrunQueue, dec_hook=decode_hook)


class _Unread(msgspec.Struct):
    metadata: ObjectMeta
    status: TorchrunJobStatus | None = None


def read_job(data: bytes) -> TorchrunJob:
    """A job as the server has it. One whose spec only the operator could refuse is read without its spec."""
    try:
        return _jobs.decode(data)
    except msgspec.ValidationError:
        part = msgspec.json.decode(data, type=_Unread, dec_hook=decode_hook)
        return TorchrunJob(metadata=part.metadata, spec=TorchrunJobSpec(job_queue="", command=""), status=part.status)


def read_queue(data: bytes) -> TorchrunQueue:
    """A queue as the server has it."""
    return _queues.decode(data)


def age_order(job: TorchrunJob) -> tuple[float, str]:
    """Sorts jobs oldest first. Two of one second are told apart by what their submitter wrote."""
    meta = job.metadata
    return seconds_of(meta.creation_timestamp) or 0.0, meta.annotations.get(SUBMITTED_ANNOTATION, "")


class Running(Slim, frozen=True):
    """Since when a container runs."""

    started_at: str = ""


class ContainerState(kube.ContainerState, frozen=True):
    """The state, or the one before it."""

    running: Running | None = None


class ContainerStatus(kube.ContainerStatus, frozen=True):
    """A container of a pod, with its past."""

    image: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    restart_count: int = 0


class PodStatus(kube.PodStatus, frozen=True):
    """A pod's status, with its containers' past."""

    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Resources(Slim, frozen=True):
    """What a container asks for."""

    requests: dict[str, str] = {}


class ContainerSpec(Slim, frozen=True):
    """A container of a pod."""

    name: str
    image: str = ""
    resources: Resources = Resources()


class ClaimUse(Slim, frozen=True):
    """A claim that a pod mounts."""

    claim_name: str = ""


class VolumeUse(Slim, frozen=True):
    """A volume of a pod."""

    name: str = ""
    persistent_volume_claim: ClaimUse | None = None


class PodSpec(Slim, frozen=True):
    """What is read of a pod's spec."""

    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[ContainerSpec, ...] = ()
    volumes: tuple[VolumeUse, ...] = ()
    node_selector: dict[str, str] = {}


class Pod(JobPod, frozen=True):
    """A pod of a job."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def trainer(self) -> str:
        """Name of the container that trains. Ours is `trainer`; controllers of others prescribe theirs."""
        names = [one.name for one in self.spec.containers]
        return next((name for name in TRAINERS if name in names), names[0] if names else TRAINERS[0])

    @property
    def restarts(self) -> int:
        """How often the container that trains was started again."""
        mine = self.trainer
        return next((one.restart_count for one in self.status.container_statuses if one.name == mine), 0)

    def container(self) -> ContainerState:
        """The state of the container that trains."""
        mine = self.trainer
        return next((one.state for one in self.status.container_statuses if one.name == mine), ContainerState())

    def requests(self, resource: str) -> list[str]:
        """What its containers ask for of one resource."""
        return [one.resources.requests[resource] for one in self.spec.containers if resource in one.resources.requests]


class Involved(Slim, frozen=True):
    """What an event is about."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class Series(Slim, frozen=True):
    """A repeated event."""

    count: int = 0
    last_observed_time: str | None = None


class ClusterEvent(Slim, frozen=True):
    """An event as Kubernetes keeps it, for about an hour."""

    metadata: Metadata
    involved_object: Involved = Involved()
    reason: str = ""
    message: str = ""
    type: str = "Normal"
    event_time: str | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    series: Series | None = None

    @property
    def time(self) -> float:
        """When it was last seen; unix seconds."""
        last = self.series.last_observed_time if self.series else None
        stamps = (last, self.last_timestamp, self.event_time, self.first_timestamp, self.metadata.creation_timestamp)
        return next((seconds for seconds in map(seconds_of, stamps) if seconds is not None), 0.0)


class ClaimStatus(Slim, frozen=True):
    """Where a claim stands."""

    phase: str = ""


class ClaimSpec(Slim, frozen=True):
    """What a claim wants."""

    storage_class_name: str | None = None
    access_modes: tuple[str, ...] = ()


class Claim(Slim, frozen=True):
    """A PersistentVolumeClaim."""

    metadata: Metadata
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class Taint(Slim, frozen=True):
    """What keeps pods off a node."""

    key: str
    effect: str = ""
    value: str = ""


class NodeSpec(Slim, frozen=True):
    """What is read of a node's spec."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(Slim, frozen=True):
    """What is read of a node's status."""

    allocatable: dict[str, str] = {}
    conditions: tuple[kube.Condition, ...] = ()


class Node(Slim, frozen=True):
    """A node."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether its kubelet says so."""
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)


class StorageClass(Slim, frozen=True):
    """A StorageClass."""

    metadata: Metadata
    provisioner: str = ""

    @property
    def default(self) -> bool:
        """Whether claims without a class get it."""
        return (self.metadata.annotations or {}).get("storageclass.kubernetes.io/is-default-class") == "true"
