"""The operator's own objects: what runs it in a cluster. `make generate` writes them to config/ and the chart's tests
compare with them; `orchestra install` applies the very same. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestra import __version__
from orchestra.operator import rights
from orchestra.operator.rights import NAME, NAMESPACE

Json = dict[str, Any]

IMAGE = f"orchestra:{__version__}"
PORT = 8080
USER = 65532
"""Nobody's number: the image names no user that could own files."""

LABELS = {"app.kubernetes.io/name": "orchestra", "app.kubernetes.io/component": "operator"}


@dataclass(frozen=True)
class Installation:
    """What may differ from one cluster to the next."""

    image: str = IMAGE
    replicas: int = 2
    namespaces: tuple[str, ...] = ()
    """Only these are served, by Roles alone; none means the whole cluster."""
    workspace_store: bool = False
    """Whether folders can be submitted: a store in the cluster, with a volume of its own."""


def rbac_manifests(made: Installation) -> list[Json]:
    """Who the operator is and what it may do."""
    if made.namespaces:
        return rights.namespaced_role_manifests(made.namespaces)
    return rights.role_manifests()


def deployment_manifests(made: Installation) -> list[Json]:
    """Everything in config/deployment.yaml. Its namespace and account come along, so that any file may be first."""
    return [
        rights.namespace(),
        rights.service_account(),
        deployment(made),
        _object("v1", "Service", spec=_service_spec()),
        _object("policy/v1", "PodDisruptionBudget", spec=_disruption_spec()),
    ]


def service_monitor() -> Json:
    """For the Prometheus operator. In a file of its own: where that is absent, its kind is unknown."""
    endpoint = {"port": "http", "path": "/metrics", "interval": "30s"}
    spec = {"selector": {"matchLabels": LABELS}, "endpoints": [endpoint]}
    return _object("monitoring.coreos.com/v1", "ServiceMonitor", spec=spec)


def deployment(made: Installation) -> Json:
    """Two replicas: one leads, the other has its caches warm."""
    spec = {
        "replicas": made.replicas,
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS}, "spec": _pod_spec(made)},
    }
    return _object("apps/v1", "Deployment", spec=spec)


def arguments(made: Installation) -> list[str]:
    """The operator's command line in its pod."""
    words = ["operator", "--lease-namespace=$(POD_NAMESPACE)", f"--health=0.0.0.0:{PORT}", f"--image={made.image}"]
    return [*words, f"--namespaces={','.join(made.namespaces)}"] if made.namespaces else words


def _pod_spec(made: Installation) -> Json:
    apart = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": LABELS},
    }
    return {
        "serviceAccountName": NAME,
        # The manager drains for 15 s and then releases the lease.
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": [apart],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(made)],
    }


def _container(made: Installation) -> Json:
    return {
        "name": "operator",
        "image": made.image,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments(made),
        "env": [{"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "ports": [{"name": "http", "containerPort": PORT}],
        "livenessProbe": {**_probe("/healthz"), "periodSeconds": 10, "failureThreshold": 3, "timeoutSeconds": 5},
        "readinessProbe": {**_probe("/readyz"), "periodSeconds": 5, "timeoutSeconds": 5},
        # Python takes its time on a busy node; liveness waits until it has begun.
        "startupProbe": {**_probe("/healthz"), "periodSeconds": 2, "failureThreshold": 60, "timeoutSeconds": 5},
        # No limit on CPU: a throttled event loop loses its lease.
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _probe(path: str) -> Json:
    return {"httpGet": {"path": path, "port": "http"}}


def _service_spec() -> Json:
    """Headless: there is no answer that either pod could give for both."""
    return {"clusterIP": "None", "selector": LABELS, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]}


def _disruption_spec() -> Json:
    # Not `minAvailable: 1`, which would block every drain where somebody runs a single replica.
    return {"maxUnavailable": 1, "selector": {"matchLabels": LABELS}}


def _object(api_version: str, kind: str, *, spec: Json) -> Json:
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": LABELS}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
