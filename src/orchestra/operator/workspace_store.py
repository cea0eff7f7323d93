"""The workspace store in a cluster: its Deployment, volume, Service and rights. `make generate` writes them. Pure."""

from __future__ import annotations

from typing import Any

from orchestra.operator.manifests import IMAGE, USER
from orchestra.operator.rights import NAMESPACE

Json = dict[str, Any]

NAME = "orchestra-workspace"
PORT = 8080
_LABELS = {"app.kubernetes.io/name": "orchestra", "app.kubernetes.io/component": "workspace"}
_STORE = "/var/lib/orchestra"


def workspace_manifests(image: str = IMAGE, size: str = "20Gi", store: str = "") -> list[Json]:
    """Everything in config/workspace.yaml. With an object store's URL it needs no volume, and may have replicas."""
    meta = {"name": NAME, "namespace": NAMESPACE, "labels": _LABELS}
    subject = [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    everyone = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}]
    proxy = {"apiGroups": [""], "resources": ["services/proxy"], "resourceNames": [NAME, f"http:{NAME}:{PORT}"],
             "verbs": ["get", "create", "update"]}  # fmt: skip
    jobs = {"apiGroups": ["torchrun.ai"], "resources": ["torchrunjobs"], "verbs": ["list"]}
    rbac, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    made: list[Json] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        # It may ask whose a token is, and which snapshots jobs still need; nothing else.
        {"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": NAME},
         "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:auth-delegator"}, "subjects": subject},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": [jobs]},
        {"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": f"{NAME}-jobs"},
         "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": NAME}, "subjects": subject},
        # Whoever has a login may knock; the store itself asks for a token of a namespace.
        {"apiVersion": rbac, "kind": "Role", "metadata": meta, "rules": [proxy]},
        {"apiVersion": rbac, "kind": "RoleBinding", "metadata": meta,
         "roleRef": {"apiGroup": group, "kind": "Role", "name": NAME}, "subjects": everyone},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta,
         "spec": {"clusterIP": "None", "selector": _LABELS, "ports": [{"name": "http", "port": PORT}]}},
    ]  # fmt: skip
    if not store:
        made.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim})
    spec = {
        "replicas": 1,
        # A volume of one node: the new pod can start only when the old one has let go of it.
        "strategy": {"type": "Recreate"} if not store else {},
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": _pod_spec(image, store)},
    }
    return [*made, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}]


def _pod_spec(image: str, store: str) -> Json:
    volume: Json = {"emptyDir": {}} if store else {"persistentVolumeClaim": {"claimName": NAME}}
    url = store or f"file://{_STORE}/snapshots"
    probe = {"httpGet": {"path": "/healthz", "port": PORT}, "timeoutSeconds": 5}
    container = {
        "name": "store",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "orchestra.sync.server", f"--store={url}", f"--uploads={_STORE}/uploads",
                    f"--listen=0.0.0.0:{PORT}"],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": {**probe, "periodSeconds": 5},
        "livenessProbe": {**probe, "periodSeconds": 20, "failureThreshold": 6},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        "volumeMounts": [{"name": "store", "mountPath": _STORE}, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    security = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
    return {
        "serviceAccountName": NAME,
        "securityContext": security,
        "containers": [container],
        "volumes": [{"name": "store", **volume}, {"name": "tmp", "emptyDir": {}}],
    }
