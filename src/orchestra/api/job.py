"""TorchrunJob: one training run."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from orchestra.api.base import (
    AbsolutePath,
    Count,
    EnvName,
    LongText,
    Model,
    Name,
    NodeCount,
    PositiveSeconds,
    Raw,
    Seconds,
    Text,
)
from orchestra.api.kubernetes import (
    Condition,
    EnvFromSource,
    EnvVar,
    LocalObjectReference,
    ObjectMeta,
    SecurityContext,
    Toleration,
)
from orchestra.api.template import (
    Distributed,
    Lifecycle,
    Network,
    NodeResources,
    Storage,
    WorkspaceSource,
)

Command = LongText | list[LongText]
"""A shell-like line, parsed once and never given to a shell, or the words themselves."""

Phase = Literal["Pending", "Syncing", "Queued", "Provisioning", "Running", "Suspended", "Succeeded", "Failed"]


class Environment(Model):
    """Python packages the job needs beyond the image. Cached by content, set up once a node."""

    requirements: Text | None = None
    """A requirements file in the workspace."""
    manager: Literal["venv", "conda"] | None = None
    """Who makes the environment; absent: venv."""
    python: Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+){0,2}$", max_length=16)] | None = None
    """Version of Python, such as `"3.11"`."""


class SecretUse(Model):
    """A Secret whose keys become environment variables. Values never stand in a manifest."""

    name: Name
    """Name of the Secret, in the job's namespace."""
    key: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    """One key; absent: all of them."""
    env: EnvName | None = None
    """Name of the variable; absent: the key."""


class Elastic(Model):
    """The range of nodes that a job can train on."""

    min_nodes: NodeCount = 1
    """Fewest nodes."""
    max_nodes: NodeCount | None = None
    """Most nodes; absent: the planned size."""


class Workspace(Model):
    """Where this job's code comes from."""

    source: WorkspaceSource | None = None
    """`local` is the folder that the job was submitted from."""
    url: Text | None = None
    """Address of the git repository or the object-store prefix."""
    ref: Text | None = None
    """Branch, tag or commit."""
    secret_name: Name | None = None
    """Secret with the credentials."""
    snapshot: Annotated[str, Meta(max_length=128)] | None = None
    """Id of the snapshot of the folder; written by `submit` and `sync`."""


class Sync(Model):
    """Object stores: what is fetched before the start and what is sent back."""

    code: Text | None = None
    """URL of the code."""
    data: Text | None = None
    """URL of the data."""
    output: Text | None = None
    """URL that outputs and checkpoints go to, and come back from after a restart."""
    interval: PositiveSeconds | None = None
    """Seconds between two uploads; absent: 600."""
    secret_name: Name | None = None
    """Secret with the credentials; absent: those of the environment."""


class Overrides(Model):
    """Changes of the queue's template for this job, as far as the queue allows them."""

    node_resources: NodeResources | None = None
    """Another size of node."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled."""
    image_pull_secrets: list[LocalObjectReference] = []
    """Further Secrets for private registries."""
    service_account_name: Name | None = None
    """Another ServiceAccount."""
    security_context: SecurityContext | None = None
    """Other security settings."""
    scheduler: Annotated[str, Meta(max_length=63)] | None = None
    """Another scheduler."""
    gang: Literal["auto", "coscheduling", "none"] | None = None
    """Another gang scheduler."""
    priority_class_name: Name | None = None
    """Another PriorityClass."""
    node_selector: dict[str, Annotated[str, Meta(max_length=63)]] = {}
    """Further labels that a node must have."""
    affinity: Raw | None = None
    """Affinity rules, instead of the queue's."""
    tolerations: list[Toleration] = []
    """Further tolerations."""
    topology_spread_constraints: list[Raw] = []
    """Further spread rules."""
    spread: bool | None = None
    """One worker a node."""
    network: Network | None = None
    """Another network."""
    pod_template: Raw | None = None
    """Anything else of a pod, laid over the queue's."""


class TorchrunJobSpec(Model, kw_only=True):
    """What to run, how large, and what to do when it fails."""

    job_queue: Name
    """Name of the TorchrunQueue."""
    num_gpus: Annotated[int, Meta(ge=1, le=1000000)] | None = None
    """GPUs in all; the nodes follow from the queue."""
    num_nodes: NodeCount | None = None
    """Nodes, instead of `numGPUs`."""
    gpus_per_node: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """With `numNodes`: GPUs a node; absent: all."""
    procs_per_node: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """With `numNodes`: processes a node; absent: one a GPU, or one on a CPU queue."""
    command: Command
    """What to run: a line or a list of words. `python train.py` is launched by torchrun."""
    setup_command: Command | None = None
    """Run once a node before the command: a line for the shell, or a list of words."""
    environment: Environment | None = None
    """Python packages the job needs."""
    image: Text | None = None
    """Container image, instead of the queue's."""
    working_dir: AbsolutePath | None = None
    """Folder that the command runs in."""
    env: Annotated[list[EnvVar], Meta(max_length=512)] = []
    """Environment variables, over the queue's by name."""
    env_from: list[EnvFromSource] = []
    """Further Secrets and ConfigMaps."""
    secrets: list[SecretUse] = []
    """Secrets that the processes see as environment variables."""
    launcher: Literal["auto", "torchrun", "deepspeed", "none"] = "auto"
    """Who starts the processes; `auto` reads it from the command."""
    distributed: Distributed | None = None
    """How the processes find each other, over the queue's."""
    elastic: Elastic | None = None
    """Let the number of nodes vary."""
    suspend: bool = False
    """Checkpoint, stop and free the resources; false again resumes."""
    lifecycle: Lifecycle | None = None
    """When the job is restarted, stopped and removed, over the queue's."""
    restart_policy: Literal["OnFailure", "Never"] | None = None
    """The same as `lifecycle.restartPolicy`."""
    max_restarts: Annotated[int, Meta(ge=0, le=10000)] | None = None
    """The same as `lifecycle.maxRestarts`."""
    ttl_seconds_after_finished: Seconds | None = None
    """The same as `lifecycle.ttlSecondsAfterFinished`."""
    active_deadline_seconds: PositiveSeconds | None = None
    """The same as `lifecycle.activeDeadlineSeconds`."""
    workspace: Workspace | None = None
    """Where the code comes from."""
    sync: Sync | None = None
    """Object stores to fetch from and send to."""
    storage: Storage | None = None
    """Volumes, over the queue's."""
    volumes: list[Raw] = []
    """Further volumes, as in Kubernetes."""
    volume_mounts: list[Raw] = []
    """Where they are mounted, as in Kubernetes."""
    overrides: Overrides | None = None
    """Changes of the queue's template."""
    labels: dict[str, Annotated[str, Meta(max_length=63)]] = {}
    """Labels for everything that the job creates."""
    annotations: dict[str, Text] = {}
    """Annotations for everything that the job creates."""


class Workers(Model):
    """Workers of the current attempt."""

    desired: Count = 0
    """Wanted."""
    created: Count = 0
    """Created in this attempt beyond the first ones: the next free index of an elastic job's workers; 0: none."""
    ready: Count = 0
    """Ready."""
    running: Count = 0
    """Running."""
    failed: Count = 0
    """Failed."""
    succeeded: Count = 0
    """Done."""


class Progress(Model):
    """How far along the training is, as rank 0 last said."""

    step: Count | None = None
    """Optimizer steps done."""
    total_steps: Count | None = None
    """Steps in all."""
    epoch: float | None = None
    """Epochs done."""
    loss: float | None = None
    """Last loss."""
    tokens_per_second: float | None = None
    """Tokens a second, all processes."""
    eta_seconds: Count | None = None
    """Seconds to the end."""
    checkpoint_step: Count | None = None
    """Step of the newest complete checkpoint."""
    goodput: float | None = None
    """Share of the wall time that went into useful steps."""


class Failure(Model):
    """What ended the job, or its last attempt: the first rank that failed, not those that fell with it."""

    rank: int | None = None
    """The rank."""
    pod: Text | None = None
    """Its pod."""
    exit_code: int | None = None
    """Its exit code; negative for a signal."""
    reason: Text | None = None
    """One word."""
    message: LongText | None = None
    """The true reason, with the last lines."""


class RestartBudget(Model):
    """What has been used of the restarts since the last new checkpoint."""

    spent: Count = 0
    """Failures."""
    free_retries: Count = 0
    """Attempts lost through no fault of the job."""
    checkpoint_step: Count | None = None
    """The checkpoint that this is counted from."""
    not_before: Text | None = None
    """The next attempt starts at this time."""


class TorchrunJobStatus(Model):
    """Where the job stands."""

    phase: Phase | None = None
    """In one word."""
    conditions: list[Condition] = []
    """In sentences."""
    nodes: Count | None = None
    """Nodes of the current attempt."""
    procs_per_node: Count | None = None
    """Processes a node."""
    gpus: Count | None = None
    """GPUs in all."""
    workers: Workers | None = None
    """Workers of the current attempt."""
    attempt: Count | None = None
    """Full starts so far."""
    restarts: Count | None = None
    """Failures survived so far."""
    start_time: Text | None = None
    """When it first ran."""
    completion_time: Text | None = None
    """When it ended."""
    progress: Progress | None = None
    """How far along it is."""
    progress_text: Text | None = None
    """The same in a few characters, for lists."""
    failure: Failure | None = None
    """What went wrong."""
    budget: RestartBudget | None = None
    """What is used of the restarts."""
    accepted: Raw | None = None
    """What the API server cannot guard of the spec (`command`, volumes, ...), as the job was started with it."""
    observed_generation: int | None = None
    """The generation this was said about."""


class TorchrunJob(Model, kw_only=True):
    """One distributed training run."""

    api_version: str = "torchrun.ai/v1alpha1"
    kind: str = "TorchrunJob"
    metadata: ObjectMeta
    spec: TorchrunJobSpec
    """What to run."""
    status: TorchrunJobStatus | None = None
    """Where it stands."""
