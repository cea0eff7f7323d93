"""What a queue prescribes and a job may override: resources, storage, scheduling, rendezvous, lifecycle.

Fields here have no defaults of their own. A job's block is laid over its queue's, so "not given" must stay
different from "given as usual"; `orchestra.api.defaults` fills the rest after the two are merged.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from orchestra.api.base import (
    AbsolutePath,
    Label,
    Model,
    Name,
    Port,
    PositiveSeconds,
    Raw,
    Seconds,
    Text,
)
from orchestra.api.kubernetes import (
    EnvFromSource,
    EnvVar,
    LocalObjectReference,
    SecurityContext,
    Toleration,
)
from orchestra.api.quantity import Quantity

AccessMode = Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]
WorkspaceSource = Literal["local", "git", "s3", "existing"]


class NodeResources(Model):
    """What one whole node of this queue has. A job that uses part of a node gets that share of it."""

    gpus: Annotated[int, Meta(ge=0, le=1024)] | None = None
    """GPUs a node; absent or 0 makes this a CPU queue."""
    cpus: Quantity | None = None
    """CPUs a node."""
    memory: Quantity | None = None
    """Memory a node."""
    gpu_type: Label | None = None
    """Kind of GPU, for people and for status."""


class ClaimedStorage(Model):
    """A folder on a claim: one made for the job, or one that exists."""

    enabled: bool | None = None
    """Whether there is one; a block without this word means yes."""
    size_per_gpu: Quantity | None = None
    """Size of the claim for each GPU (or process, on a CPU queue) of the job."""
    storage_class: Name | None = None
    """StorageClass of the claim."""
    access_modes: Annotated[list[AccessMode], Meta(max_length=4)] = []
    """Absent: ReadWriteOnce for one node, ReadWriteMany for more."""
    claim_name: Name | None = None
    """An existing claim, instead of one made for the job."""
    mount_path: AbsolutePath | None = None
    """Where the workers see it."""


class WorkspaceStorage(ClaimedStorage):
    """The folder with the user's code."""

    source: WorkspaceSource | None = None
    """Where the code comes from."""
    url: Text | None = None
    """Address of the git repository or the object-store prefix."""
    ref: Text | None = None
    """Branch, tag or commit of the git repository."""
    secret_name: Name | None = None
    """Secret with the credentials for the source."""


class DatasetStorage(Model):
    """Data that jobs share, by reference to a claim that exists."""

    enabled: bool | None = None
    """Whether it is mounted; a block without this word means yes."""
    claim_name: Name | None = None
    """Name of the PersistentVolumeClaim."""
    mount_path: AbsolutePath | None = None
    """Where the workers see it."""
    read_only: bool | None = None
    """Mounted read-only."""


class CheckpointStorage(ClaimedStorage):
    """Where checkpoints and outputs are kept."""

    retain: bool | None = None
    """Keep the claim when the job is deleted."""


class ModelStorage(ClaimedStorage):
    """Where model weights are kept, for training without a hub."""

    read_only: bool | None = None
    """Mounted read-only."""
    retain: bool | None = None
    """Keep the claim when the job is deleted."""


class Storage(Model):
    """Volumes of the workers."""

    shm_size_per_gpu: Quantity | None = None
    """Shared memory (/dev/shm) for each GPU (or process) of a node; absent: bounded only by the memory."""
    workspace: WorkspaceStorage | None = None
    """The user's code."""
    datasets: DatasetStorage | None = None
    """Shared data."""
    checkpoints: CheckpointStorage | None = None
    """Checkpoints and outputs."""
    models: ModelStorage | None = None
    """Model weights."""


class Scheduling(Model):
    """Where the workers may run and who places them."""

    scheduler: Label | None = None
    """Name of the scheduler; `kai-scheduler` means gang scheduling by KAI."""
    gang: Literal["auto", "coscheduling", "none"] | None = None
    """Who places all workers at once, where it is not KAI."""
    priority_class_name: Name | None = None
    """PriorityClass of the workers."""
    node_selector: dict[str, Label] = {}
    """Labels that a node must have."""
    affinity: Raw | None = None
    """Affinity rules, as in Kubernetes."""
    tolerations: list[Toleration] = []
    """Taints that the workers accept."""
    topology_spread_constraints: list[Raw] = []
    """Spread rules, as in Kubernetes."""
    spread: bool | None = None
    """One worker a node: no two workers of a job share one."""


class Distributed(Model):
    """How the processes find and talk to each other."""

    backend: Literal["nccl", "gloo", "mpi"] | None = None
    """Collective backend; absent: nccl on GPU queues, gloo on CPU queues."""
    rdzv_backend: Literal["c10d", "etcd-v2", "static"] | None = None
    """How workers meet. `etcd-v2` is accepted for old jobs; c10d is better."""
    rdzv_endpoint: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    """An existing rendezvous store, `host:port`; absent: one of the job's own."""
    port: Port | None = None
    """Port of the rendezvous and of MASTER_PORT."""


class Network(Model):
    """Network of the workers."""

    interface: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """Interface for collectives (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)."""
    host_network: bool | None = None
    """Use the node's network instead of the pod's."""


class Lifecycle(Model):
    """When a job is restarted, given up, stopped and removed."""

    restart_policy: Literal["OnFailure", "Never"] | None = None
    """Whether a failed job is started again."""
    max_restarts: Annotated[int, Meta(ge=0, le=10000)] | None = None
    """How many failures a job may survive; a newer complete checkpoint refills it."""
    ttl_seconds_after_finished: Seconds | None = None
    """Delete the job this long after its end; absent: keep it."""
    active_deadline_seconds: PositiveSeconds | None = None
    """Fail the job when it has been active this long."""
    grace_period_seconds: Seconds | None = None
    """How long a stop may take, checkpoint included."""
    hang_timeout_seconds: PositiveSeconds | None = None
    """No progress for this long is a hang; absent: derived from the measured step time."""
    node_lost_seconds: PositiveSeconds | None = None
    """A silent node without progress is given up after this long."""
    gang_timeout_seconds: PositiveSeconds | None = None
    """A gang that is not wholly placed after this long gives its places back and waits again."""
    pending_timeout_seconds: PositiveSeconds | None = None
    """Fail a job that has waited this long; absent: wait for ever."""


class Template(Model):
    """All that describes how a worker is made. A queue is a template; a job changes parts of it."""

    node_resources: NodeResources | None = None
    """What one node of this queue has."""
    image: Text | None = None
    """Container image of the workers."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled."""
    image_pull_secrets: list[LocalObjectReference] = []
    """Secrets for private registries."""
    working_dir: AbsolutePath | None = None
    """Folder that the command runs in; absent: the workspace if there is one, else the image's."""
    service_account_name: Name | None = None
    """ServiceAccount of the workers, in the job's namespace."""
    security_context: SecurityContext | None = None
    """Security settings of the workers."""
    env: Annotated[list[EnvVar], Meta(max_length=512)] = []
    """Environment variables."""
    env_from: list[EnvFromSource] = []
    """Secrets and ConfigMaps whose keys become environment variables."""
    storage: Storage | None = None
    """Volumes of the workers."""
    scheduling: Scheduling | None = None
    """Where the workers may run."""
    distributed: Distributed | None = None
    """How the processes find each other."""
    network: Network | None = None
    """Network of the workers."""
    pod_template: Raw | None = None
    """Anything else of a pod (`metadata`, `spec`), laid under what Orchestra writes. The container `trainer` is
    ours."""
    lifecycle: Lifecycle | None = None
    """When a job is restarted, stopped and removed."""
