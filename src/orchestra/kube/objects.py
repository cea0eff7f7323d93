"""The few words every Kubernetes object shares, as slim structs.

A caller brings structs of its own with the fields it reads; whatever they do not name (`managedFields` above all)
is skipped by the decoder and never becomes a Python object.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import quote

import msgspec


class Key(NamedTuple):
    """Which object of a kind: its namespace ("" for a cluster-wide one) and its name.

    A name is not an identity: an object deleted and made again has the same key and another UID.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Slim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """The base of structs for API objects. Frozen: what lies in a cache is shared by all who read it."""


class OwnerReference(Slim, frozen=True):
    """Who an object belongs to."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class Metadata(Slim, frozen=True):
    """What is read of `metadata`."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """Where the object is."""
        return Key(self.namespace, self.name)

    @property
    def controller_uid(self) -> str | None:
        """UID of the owner that manages this object; None where there is no such owner."""
        for owner in self.owner_references:
            if owner.controller:
                return owner.uid
        return None


class KubeObject(Protocol):
    """Anything with metadata: the least a struct of a caller must have."""

    @property
    def metadata(self) -> Metadata:
        """Its metadata."""
        ...


class MetadataOnly(Slim, frozen=True):
    """An object of any kind of which nothing but the metadata is wanted."""

    metadata: Metadata


T = TypeVar("T", bound=KubeObject)


class Resource(msgspec.Struct, frozen=True):
    """One kind as the API server serves it."""

    group: str
    """Empty for the core group."""
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As manifests write it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """The path of its group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def collection(self, namespace: str | None = None) -> str:
        """The path of all objects of one namespace, or (None, "") of all there are."""
        if namespace and self.namespaced:
            return f"{self.root}/namespaces/{quote(namespace, safe='')}/{self.plural}"
        return f"{self.root}/{self.plural}"

    def path(self, key: Key, subresource: str = "") -> str:
        """The path of one object, or of a subresource of it."""
        if self.namespaced and not key.namespace:
            raise ValueError(f"{self.kind} {key.name} needs a namespace")
        path = f"{self.collection(key.namespace)}/{quote(key.name, safe='')}"
        return f"{path}/{subresource}" if subresource else path

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "v1", "Pod", "pods")
SERVICES = Resource("", "v1", "Service", "services")
CONFIG_MAPS = Resource("", "v1", "ConfigMap", "configmaps")
VOLUME_CLAIMS = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NODES = Resource("", "v1", "Node", "nodes", namespaced=False)
NAMESPACES = Resource("", "v1", "Namespace", "namespaces", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "Lease", "leases")
EVENTS = Resource("events.k8s.io", "v1", "Event", "events")


def by_controller(item: KubeObject) -> Iterable[str]:
    """Index function: the UID of the controlling owner. Never its name, which a stranger may bear tomorrow."""
    uid = item.metadata.controller_uid
    return () if uid is None else (uid,)


def by_namespace(item: KubeObject) -> Iterable[str]:
    """Index function: the namespace."""
    return (item.metadata.namespace,)
