"""The few pieces of Kubernetes' own API that we read or write ourselves."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from orchestra.api.base import Count, EnvName, Label, LongText, Model, Name, Raw, Text


class OwnerReference(Model):
    """The object that this one is deleted with."""

    api_version: Text
    kind: Text
    name: Text
    uid: Text
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Model):
    """Name, namespace and the rest that every Kubernetes object carries."""

    name: Text
    namespace: Label | None = None
    labels: dict[str, Text] = {}
    annotations: dict[str, LongText] = {}
    uid: Text | None = None
    generation: int | None = None
    resource_version: Text | None = None
    creation_timestamp: Text | None = None
    deletion_timestamp: Text | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: list[Text] = []
    owner_references: list[OwnerReference] = []
    managed_fields: list[Raw] = []
    generate_name: Text | None = None
    self_link: Text | None = None


class KeySelector(Model):
    """One key of a Secret or ConfigMap."""

    name: Name
    """Name of the object, in the job's namespace."""
    key: Annotated[str, Meta(min_length=1, max_length=253)]
    """The key within it."""
    optional: bool | None = None
    """Whether it may be missing."""


class FieldSelector(Model):
    """A field of the pod itself."""

    field_path: Text
    """Path of the field, such as `status.podIP`."""
    api_version: Text | None = None
    """Version of the schema that the path is written in."""


class ResourceFieldSelector(Model):
    """A resource of the container, such as `limits.cpu`."""

    resource: Text
    """Which resource."""
    container_name: Text | None = None
    """Of which container."""
    divisor: Text | None = None
    """The unit, such as `1Mi`."""


class EnvVarSource(Model):
    """Where the value of an environment variable comes from."""

    secret_key_ref: KeySelector | None = None
    """A key of a Secret."""
    config_map_key_ref: KeySelector | None = None
    """A key of a ConfigMap."""
    field_ref: FieldSelector | None = None
    """A field of the pod."""
    resource_field_ref: ResourceFieldSelector | None = None
    """A resource of the container."""


class EnvVar(Model):
    """One environment variable."""

    name: EnvName
    """Name of the variable."""
    value: LongText | None = None
    """Its value, taken literally."""
    value_from: EnvVarSource | None = None
    """Where the value comes from, instead of `value`."""


class ObjectReference(Model):
    """Another object of the same namespace, by name."""

    name: Name
    """Its name."""
    optional: bool | None = None
    """Whether it may be missing."""


class EnvFromSource(Model):
    """All keys of a Secret or ConfigMap as environment variables."""

    prefix: Text | None = None
    """Put in front of each name."""
    secret_ref: ObjectReference | None = None
    """The Secret."""
    config_map_ref: ObjectReference | None = None
    """The ConfigMap."""


class LocalObjectReference(Model):
    """A Secret of the job's namespace, by name."""

    name: Name
    """Its name."""


class Toleration(Model):
    """Lets a pod run on nodes with a matching taint."""

    key: Text | None = None
    """Key of the taint; absent with `Exists`: every taint."""
    operator: Literal["Exists", "Equal", "Lt", "Gt"] | None = None
    """How key and value are compared (Equal when absent)."""
    value: Text | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; absent: every effect."""
    toleration_seconds: int | None = None
    """How long a NoExecute taint is tolerated."""


class SecurityContext(Model):
    """Security settings of the workers. Pod and container settings in one place; each goes where it belongs."""

    run_as_user: Count | None = None
    """User id of the processes."""
    run_as_group: Count | None = None
    """Group id of the processes."""
    run_as_non_root: bool | None = None
    """Refuse to start as root."""
    fs_group: Count | None = None
    """Group that owns the mounted volumes."""
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = None
    """When ownership of volumes is changed."""
    supplemental_groups: list[Count] = []
    """Further groups of the processes."""
    supplemental_groups_policy: Literal["Merge", "Strict"] | None = None
    """How they are put together with the image's."""
    seccomp_profile: Raw | None = None
    """Seccomp profile, as in Kubernetes."""
    se_linux_options: Raw | None = None
    """SELinux labels, as in Kubernetes."""
    app_armor_profile: Raw | None = None
    """AppArmor profile, as in Kubernetes."""
    sysctls: list[Raw] = []
    """Kernel parameters of the pod."""
    capabilities: Raw | None = None
    """Linux capabilities of the container, as in Kubernetes."""
    privileged: bool | None = None
    """Run the container privileged."""
    allow_privilege_escalation: bool | None = None
    """Whether a process may gain more privileges than its parent."""
    read_only_root_filesystem: bool | None = None
    """Mount the image read-only."""
    proc_mount: Text | None = None
    """How /proc is mounted."""


class Condition(Model):
    """One thing that is true or not about an object, why, and since when."""

    type: Annotated[str, Meta(max_length=316)]
    """What the condition is about, in CamelCase."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Text
    """One word for programs."""
    message: LongText
    """A sentence for people."""
    last_transition_time: Text
    """When `status` last changed."""
    observed_generation: int | None = None
    """The generation of the object that this was said about."""
