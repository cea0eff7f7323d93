"""The kinds an installation consists of, and which object of them a manifest means."""

from __future__ import annotations

from typing import Any

from orchestra.kube.objects import NAMESPACES, SERVICES, VOLUME_CLAIMS, Key, Resource

Json = dict[str, Any]

_RBAC = "rbac.authorization.k8s.io"
CRDS = Resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")
SERVICE_MONITORS = Resource("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors")

_KNOWN = {
    one.kind: one
    for one in (
        CRDS,
        DEPLOYMENTS,
        NAMESPACES,
        SERVICES,
        SERVICE_MONITORS,
        VOLUME_CLAIMS,
        Resource("", "v1", "ServiceAccount", "serviceaccounts"),
        Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
        Resource(_RBAC, "v1", "Role", "roles"),
        Resource(_RBAC, "v1", "RoleBinding", "rolebindings"),
        Resource(_RBAC, "v1", "ClusterRole", "clusterroles", namespaced=False),
        Resource(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    )
}


def resource_of(manifest: Json) -> Resource:
    """The kind of a manifest."""
    return _KNOWN[manifest["kind"]]


def key_of(manifest: Json) -> Key:
    """Its namespace and name."""
    return Key(manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"])


def named(manifest: Json) -> str:
    """As people call it."""
    return f"{manifest['kind']} {key_of(manifest)}"
