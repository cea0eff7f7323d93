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
from orchestra.kube.pods import Condition, Terminated
from orchestra.plan.job_pods import JobPod

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


class NodeStatus(Slim, frozen=True):
    """What is read of a node's status."""

    conditions: tuple[Condition, ...] = ()


class NodeObject(Slim, frozen=True):
    """A node of the cluster in the cache: whether its kubelet is heard of, and since when."""

    metadata: Metadata
    status: NodeStatus = NodeStatus()

    def condition(self) -> Condition | None:
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


class PodObject(JobPod, frozen=True):
    """A pod of a job in the cache."""

    spec: PodSpec = PodSpec()

    def terminated(self) -> Terminated | None:
        """How the trainer ended."""
        found = (one.state.terminated for one in self.status.container_statuses if one.name == "trainer")
        return next(found, None)

    def terminated_beside(self, name: str) -> Terminated | None:
        """How a container that moves bytes ended."""
        return next((one.state.terminated for one in self.status.init_container_statuses if one.name == name), None)
