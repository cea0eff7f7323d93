"""What is read of a pod by everybody who reads pods. Who needs more adds fields to these."""

import msgspec

from orchestra.kube.objects import Metadata, Slim


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
    """At most one of them is set."""

    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(Slim, frozen=True):
    """A container of a pod."""

    name: str
    state: ContainerState = ContainerState()


class Condition(Slim, frozen=True):
    """A condition of a pod or a node."""

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
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Slim, frozen=True):
    """A pod."""

    metadata: Metadata
    status: PodStatus = PodStatus()

    def label(self, name: str) -> str:
        """A label, or nothing."""
        return (self.metadata.labels or {}).get(name, "")

    @property
    def ended(self) -> bool:
        """Whether its processes are over."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def leaving(self) -> bool:
        """Whether somebody deleted it."""
        return self.metadata.deletion_timestamp is not None
