"""The Plan: everything about one run, and nothing about where it runs."""

from __future__ import annotations

from typing import Any, Literal

from orchestra.api.base import Model
from orchestra.api.job import Environment, SecretUse
from orchestra.api.kubernetes import EnvFromSource, EnvVar
from orchestra.api.quantity import Quantity
from orchestra.api.template import Lifecycle, Template

Purpose = Literal["workspace", "datasets", "checkpoints", "models"]


class NodePlan(Model, kw_only=True):
    """One node: what it runs and with which environment."""

    index: int
    argv: list[str]
    """The whole launch line."""
    launcher: list[str] = []
    """The launcher and its options only, for an agent that puts itself between it and `Launch.program`."""
    env: dict[str, str]


class Resources(Model):
    """What one node of the job gets."""

    gpus: int
    cpu: Quantity | None = None
    memory: Quantity | None = None
    shm: Quantity | None = None
    """Size of /dev/shm; absent: bounded only by the memory."""
    gpu_type: str | None = None


class Rendezvous(Model):
    """How the nodes meet."""

    backend: str
    """c10d, etcd-v2, static, or another that the command itself names."""
    collective: Literal["nccl", "gloo", "mpi"]
    store: str
    own_store: bool
    """Whether the engine has to bring the store up; false when the user named one or none is needed."""


class Volume(Model):
    """A folder that every node sees."""

    purpose: Purpose
    mount_path: str
    claim: str
    exists: bool
    """The claim is the user's: never created, never deleted."""
    size: Quantity | None = None
    """Of the whole claim."""
    size_per_node: Quantity | None = None
    """Of one node's part, where an engine gives each node its own copy."""
    storage_class: str | None = None
    access_modes: list[str] = []
    read_only: bool = False
    retain: bool = False
    on_each_node: bool = False
    """No claim after all: each node has a folder of its own, because the storage class cannot share one."""


class Code(Model):
    """Where the workers' code comes from."""

    source: Literal["local", "git", "s3", "existing"]
    mount_path: str
    url: str | None = None
    ref: str | None = None
    secret_name: str | None = None
    snapshot: str | None = None


class SyncPlan(Model):
    """What moves between the workers and object stores."""

    code: str | None = None
    data: str | None = None
    output: str | None = None
    interval: int = 600
    secret_name: str | None = None


class Gang(Model):
    """Who places all nodes at once."""

    scheduler: Literal["kai", "coscheduling", "none"]
    min_member: int
    queue: str | None = None
    """The KAI queue."""


class Launch(Model):
    """What is launched, taken apart for whoever starts it."""

    launcher: Literal["torchrun", "deepspeed", "none"]
    program: list[str]
    """What one process runs, interpreter included."""
    setup: list[str] = []
    """Run once a node before."""
    working_dir: str | None = None
    environment: Environment | None = None
    files: dict[str, str] = {}
    """Small files that the launch line names."""


class Plan(Model, kw_only=True):
    """One run of one job."""

    job: str
    namespace: str | None = None
    queue: str
    node_count: int
    min_nodes: int
    max_nodes: int
    procs_per_node: int
    gpus_per_node: int
    world_size: int
    launch: Launch
    nodes: list[NodePlan]
    env_references: list[EnvVar] = []
    """Variables whose value is not a literal."""
    env_from: list[EnvFromSource] = []
    secrets: list[SecretUse] = []
    resources: Resources
    rendezvous: Rendezvous
    volumes: list[Volume] = []
    extra_volumes: list[dict[str, Any]] = []
    extra_mounts: list[dict[str, Any]] = []
    code: Code | None = None
    sync: SyncPlan | None = None
    gang: Gang
    lifecycle: Lifecycle
    template: Template
    """Queue and job, merged."""
    suspended: bool = False
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    notes: list[str] = []
    """Why it is so, where a user may wonder."""

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may vary."""
        return self.min_nodes != self.max_nodes
