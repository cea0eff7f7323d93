"""The least rights that the operator needs, and those of its users. `make generate` writes them to config/rbac.

No Secrets, no pods/exec; of cluster-wide kinds only KAI's queues are written.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

NAMESPACE = "orchestra-system"
NAME = "orchestra-operator"

_READ = ["get", "list", "watch"]


def operator_rules() -> list[Json]:
    """What the operator does, and nothing else."""
    return [
        _rule("torchrun.ai", ["torchrunjobs"], [*_READ, "delete"]),  # delete: the time to live
        _rule("torchrun.ai", ["torchrunqueues"], [*_READ, "patch"]),  # patch: our finalizer
        _rule("torchrun.ai", ["torchrunjobs/status", "torchrunqueues/status"], ["get", "patch"]),
        # Where OwnerReferencesPermissionEnforcement is on, owning a child that blocks deletion needs this.
        _rule("torchrun.ai", ["torchrunjobs/finalizers", "torchrunqueues/finalizers"], ["update"]),
        _rule("", ["pods"], [*_READ, "create", "delete", "patch"]),  # patch: to end one and keep its log
        _rule("", ["nodes"], _READ),  # which of them are lost; without this right, Kubernetes' own eviction decides
        _rule("", ["services", "configmaps", "persistentvolumeclaims"], ["get", "create"]),
        _rule("networking.k8s.io", ["networkpolicies"], ["get", "create"]),
        _rule("scheduling.x-k8s.io", ["podgroups"], ["get", "create"]),
        _rule("scheduling.run.ai", ["podgroups"], ["get", "list", "create"]),  # list: is a KAI queue in use?
        _rule("scheduling.run.ai", ["queues"], [*_READ, "create", "patch", "delete"]),
        _rule("scheduling.k8s.io", ["priorityclasses"], _READ),
        _rule("storage.k8s.io", ["storageclasses"], _READ),
        _rule("events.k8s.io", ["events"], ["create", "patch"]),
    ]


def lease_rules() -> list[Json]:
    """Leader election, in the operator's own namespace only."""
    return [_rule("coordination.k8s.io", ["leases"], ["get", "create", "update"])]


def role_manifests() -> list[Json]:
    """Everything in config/rbac/role.yaml; can be applied before or after the rest."""
    subject = [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]
    user = [
        _rule("torchrun.ai", ["torchrunjobs"], [*_READ, "create", "update", "patch", "delete"]),
        _rule("torchrun.ai", ["torchrunqueues"], _READ),
    ]
    admin = [_rule("torchrun.ai", ["torchrunqueues"], [*_READ, "create", "update", "patch", "delete"])]
    to_edit = {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": NAMESPACE}},
        _role("ClusterRole", {"name": NAME}, operator_rules()),
        _binding("ClusterRole", {"name": NAME}, subject),
        _role("Role", {"name": NAME, "namespace": NAMESPACE}, lease_rules()),
        _binding("Role", {"name": NAME, "namespace": NAMESPACE}, subject),
        _role("ClusterRole", {"name": "orchestra-user", "labels": to_edit}, user),
        _role("ClusterRole", {"name": "orchestra-queue-admin"}, admin),
    ]


def _rule(group: str, resources: list[str], verbs: list[str]) -> Json:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _role(kind: str, metadata: Json, rules: list[Json]) -> Json:
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "rules": rules}


def _binding(kind: str, metadata: Json, subjects: list[Json]) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": metadata["name"]},
        "subjects": subjects,
    }
