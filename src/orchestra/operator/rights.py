"""The least rights that the operator needs, and those of its users. `make generate` writes them to config/rbac.

No Secrets, no pods/exec; of cluster-wide kinds only KAI's queues are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestra.plan.queues import SHARED_NAMESPACE as SHARED

Json = dict[str, Any]

NAMESPACE = "orchestra-system"
NAME = "orchestra-operator"

# Kinds that no namespace holds, and what goes missing for an operator that may not read them.
CLUSTER_WIDE = {
    ("", "nodes"): "nodes are not watched: a lost node is noticed when Kubernetes evicts its pods, minutes later",
    ("", "persistentvolumes"): "volumes are not read: why a claim does not bind is told by its events alone",
    ("", "namespaces"): "namespaces are not read",
    ("storage.k8s.io", "storageclasses"): "a queue that names a StorageClass that does not exist is not refused",
    ("scheduling.k8s.io", "priorityclasses"): "a queue that names a PriorityClass that does not exist is not refused",
    ("scheduling.run.ai", "queues"): "KAI's queues are neither made nor updated: make them yourself",
}

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
        _rule("", ["pods/log"], ["get"]),  # the last progress of a job whose agent cannot be reached
        _rule("", ["resourcequotas"], _READ),  # a gang is compared with them before its first pod
        _rule("", ["nodes"], _READ),  # which of them are lost; without this right, Kubernetes' own eviction decides
        _rule("", ["services", "configmaps"], ["get", "create"]),
        # delete: a claim without a volume, of a class that turned out not to share one among nodes; its event says so
        _rule("", ["persistentvolumeclaims"], ["get", "create", "delete"]),
        _rule("", ["events"], ["list"]),
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


def user_rules() -> list[Json]:
    """What people who run jobs may do."""
    return [
        _rule("torchrun.ai", ["torchrunjobs"], [*_READ, "create", "update", "patch", "delete"]),
        _rule("torchrun.ai", ["torchrunqueues"], _READ),
        # What `logs`, `events`, `status` and `why` look at.
        _rule("", ["pods", "events", "persistentvolumeclaims"], _READ),
        _rule("", ["pods/log"], ["get"]),
        # By such a token, of a short life and for nothing else, the workspace store knows whose a folder is.
        {**_rule("", ["serviceaccounts/token"], ["create"]), "resourceNames": ["default"]},
    ]


def queue_admin_rules() -> list[Json]:
    """What people who make queues may do besides."""
    return [_rule("torchrun.ai", ["torchrunqueues"], [*_READ, "create", "update", "patch", "delete"])]


def namespaced_rules() -> list[Json]:
    """`operator_rules` as far as a Role can grant them."""
    kept = []
    for rule in operator_rules():
        group = rule["apiGroups"][0]
        resources = [one for one in rule["resources"] if (group, one) not in CLUSTER_WIDE]
        if resources:
            kept.append({**rule, "resources": resources})
    return kept


def shared_queue_rules() -> list[Json]:
    """Reading the queues that all namespaces share, for an operator that has Roles alone."""
    return [_rule("torchrun.ai", ["torchrunqueues"], _READ)]


def role_manifests() -> list[Json]:
    """Everything in config/rbac/role.yaml; can be applied before or after the rest."""
    subject = [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]
    to_edit = {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}
    return [
        namespace(),
        service_account(),
        _role("ClusterRole", {"name": NAME}, operator_rules()),
        _binding("ClusterRole", {"name": NAME}, subject),
        _role("Role", {"name": NAME, "namespace": NAMESPACE}, lease_rules()),
        _binding("Role", {"name": NAME, "namespace": NAMESPACE}, subject),
        _role("ClusterRole", {"name": "orchestra-user", "labels": to_edit}, user_rules()),
        _role("ClusterRole", {"name": "orchestra-queue-admin"}, queue_admin_rules()),
    ]


def namespaced_role_manifests(namespaces: Sequence[str]) -> list[Json]:
    """The same for an operator of a few namespaces: Roles alone, and so nothing that no namespace holds."""
    subject = [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]
    made = [namespace(), service_account(), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHARED}}]
    rules = {name: namespaced_rules() for name in namespaces}
    rules.setdefault(SHARED, shared_queue_rules())
    rules[NAMESPACE] = [*rules.get(NAMESPACE, []), *lease_rules()]
    for name, allowed in rules.items():
        made.append(_role("Role", {"name": NAME, "namespace": name}, allowed))
        made.append(_binding("Role", {"name": NAME, "namespace": name}, subject))
    return made


def lost_without_cluster_rights() -> list[str]:
    """What an operator that has Roles alone cannot do, in words."""
    asked = {(group, resource) for rule in operator_rules() for group, resource in _pairs(rule)}
    lost = [words for pair, words in CLUSTER_WIDE.items() if pair in asked]
    return [*lost, "jobs in other namespaces are not seen at all"]


def namespace() -> Json:
    """Where the operator lives. It needs no more than the strictest profile allows."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def service_account() -> Json:
    """Who the operator is."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": NAMESPACE}}


def _pairs(rule: Json) -> list[tuple[str, str]]:
    return [(group, resource) for group in rule["apiGroups"] for resource in rule["resources"]]


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
