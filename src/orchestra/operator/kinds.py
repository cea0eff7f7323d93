"""The kinds that the operator reads and writes, as slim structs."""

from __future__ import annotations

import msgspec

from orchestra.api.base import decode_hook
from orchestra.api.job import TorchrunJobSpec, TorchrunJobStatus
from orchestra.api.labels import (
    ATTEMPT_LABEL,
    CANCEL_ANNOTATION,
    JOB_LABEL,
    NODE_LABEL,
    QUEUE_LABEL,
    ROLE_LABEL,
)
from orchestra.api.queue import TorchrunQueueSpec
from orchestra.kube.objects import Metadata, Resource, Slim

JOBS = Resource("torchrun.ai", "v1alpha1", "TorchrunJob", "torchrunjobs")
QUEUES = Resource("torchrun.ai", "v1alpha1", "TorchrunQueue", "torchrunqueues")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
KAI_POD_GROUPS = Resource("scheduling.run.ai", "v2alpha2", "PodGroup", "podgroups")
COSCHEDULING_POD_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")

__all__ = ["ATTEMPT_LABEL", "CANCEL_ANNOTATION", "JOB_LABEL", "NODE_LABEL", "QUEUE_LABEL", "ROLE_LABEL"]

_specs = msgspec.json.Decoder(TorchrunJobSpec, dec_hook=decode_hook)
_statuses = msgspec.json.Decoder(TorchrunJobStatus, dec_hook=decode_hook)
_queue_specs = msgspec.json.Decoder(TorchrunQueueSpec, dec_hook=decode_hook)


class JobObject(Slim, frozen=True):
    """A TorchrunJob in the cache. Spec and status stay bytes until somebody asks: most jobs sleep."""

    metadata: Metadata
    spec: msgspec.Raw
    status: msgspec.Raw = msgspec.Raw(b"{}")

    def read_spec(self) -> TorchrunJobSpec:
        """The spec. Raises `msgspec.ValidationError` for what only the operator can refuse (an empty command)."""
        return _specs.decode(self.spec)

    def read_status(self) -> TorchrunJobStatus:
        """The status, empty when there is none yet."""
        return _statuses.decode(self.status)


class QueueObject(Slim, frozen=True):
    """A TorchrunQueue in the cache."""

    metadata: Metadata
    spec: msgspec.Raw
    status: msgspec.Raw = msgspec.Raw(b"{}")

    def read_spec(self) -> TorchrunQueueSpec:
        """The spec."""
        return _queue_specs.decode(self.spec)


class Terminated(Slim, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    finished_at: str | None = None
    reason: str = ""
    message: str = ""


class Waiting(Slim, frozen=True):
    """Why a container does not run."""

    reason: str = ""
    message: str = ""


class ContainerState(Slim, frozen=True):
    """One of the three is set."""

    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(Slim, frozen=True):
    """A container of a pod."""

    name: str
    state: ContainerState = ContainerState()


class PodCondition(Slim, frozen=True):
    """A condition of a pod."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodStatus(Slim, frozen=True):
    """What is read of a pod's status."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class NodeCondition(Slim, frozen=True):
    """A condition of a node."""

    type: str
    status: str
    last_transition_time: str | None = None


class NodeStatus(Slim, frozen=True):
    """What is read of a node's status."""

    conditions: tuple[NodeCondition, ...] = ()


class NodeObject(Slim, frozen=True):
    """A node of the cluster in the cache: whether its kubelet is heard of, and since when."""

    metadata: Metadata
    status: NodeStatus = NodeStatus()

    def condition(self) -> NodeCondition | None:
        """The one that says whether it is ready."""
        return next((one for one in self.status.conditions if one.type == "Ready"), None)

    @property
    def ready(self) -> bool:
        """Whether the control plane hears of its kubelet, and hears good."""
        said = self.condition()
        return said is not None and said.status == "True"


class GroupCondition(Slim, frozen=True):
    """What a gang scheduler says about a whole gang."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class GroupStatus(Slim, frozen=True):
    """KAI's is called `schedulingConditions`."""

    scheduling_conditions: tuple[GroupCondition, ...] = ()


class GroupObject(Slim, frozen=True):
    """A PodGroup."""

    metadata: Metadata
    status: GroupStatus = GroupStatus()


class PodSpec(Slim, frozen=True):
    """What is read of a pod's spec."""

    node_name: str = ""
    active_deadline_seconds: int | None = None


class PodObject(Slim, frozen=True):
    """A pod of a job in the cache."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def label(self, name: str) -> str:
        """A label, or nothing."""
        return (self.metadata.labels or {}).get(name, "")

    @property
    def attempt(self) -> int:
        """The attempt it belongs to."""
        return int(self.label(ATTEMPT_LABEL) or 0)

    @property
    def index(self) -> int:
        """Index of its node; -1 for the rendezvous store."""
        return int(self.label(NODE_LABEL) or -1)

    @property
    def is_worker(self) -> bool:
        """Whether it trains."""
        return self.label(ROLE_LABEL) == "worker"

    @property
    def ended(self) -> bool:
        """Whether its processes are over."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def leaving(self) -> bool:
        """Whether somebody deleted it."""
        return self.metadata.deletion_timestamp is not None

    def terminated(self) -> Terminated | None:
        """How the trainer ended."""
        found = (one.state.terminated for one in self.status.container_statuses if one.name == "trainer")
        return next(found, None)

    def terminated_beside(self, name: str) -> Terminated | None:
        """How a container that moves bytes ended."""
        return next((one.state.terminated for one in self.status.init_container_statuses if one.name == name), None)
