"""Pods for tests on real nodes: built from a command, created, waited for."""

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.api import Api, Json
from testbed.gpus import RESOURCE
from testbed.host_mounts import Mounts, container, usr_mounts
from testbed.waiting import PATIENCE, wait_until

_ENDED = ("Succeeded", "Failed")


class PodFailedError(Exception):
    """A pod ended in a way the test did not wait for; the text has its status."""


def pod(
    name: str,
    command: Sequence[str],
    *,
    mounts: Mounts | None = None,
    node: str | None = None,
    gpus: int = 0,
    claims: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """A pod that runs one command of this machine, once, and may be killed within a second.

    `claims` maps a PersistentVolumeClaim to where it is mounted; `node` pins the pod; `spec` is added as it is.
    """
    lent = mounts or usr_mounts()
    volumes = [*lent.volumes, *spec.pop("volumes", [])]
    volume_mounts = [*lent.mounts, *spec.pop("volumeMounts", [])]
    for claim, path in (claims or {}).items():
        volumes.append({"name": f"claim-{claim}", "persistentVolumeClaim": {"claimName": claim}})
        volume_mounts.append({"name": f"claim-{claim}", "mountPath": path})
    env = [{"name": key, "value": value} for key, value in (environment or {}).items()]
    resources = {"limits": {RESOURCE: str(gpus)}} if gpus else {}
    main = container("main", command, Mounts(volumes, volume_mounts), env=env, resources=resources)
    if node is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [main],
            "volumes": volumes,
            **spec,
        },
    }


def create(api: Api, namespace: str, *bodies: Json) -> None:
    """Create these pods, in this order."""
    for body in bodies:
        api.create(f"/api/v1/namespaces/{namespace}/pods", body)


def get(api: Api, namespace: str, name: str) -> Json:
    """The pod as the API server has it."""
    return api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")


def wait_for_phase(api: Api, namespace: str, name: str, phase: str, *, timeout: float = PATIENCE) -> Json:
    """Wait until the pod is in this phase and return it; PodFailedError when it ended in another one."""

    def reached() -> Json | None:
        found = get(api, namespace, name)
        now = found["status"].get("phase")
        if now != phase and now in _ENDED:
            raise PodFailedError(f"pod {name} is {now} and not {phase}: {found['status']}")
        return found if now == phase else None

    return wait_until(f"pod {name} is {phase}", reached, timeout=timeout, interval=0.1) or {}


def wait_until_unschedulable(api: Api, namespace: str, name: str, *, timeout: float = PATIENCE) -> str:
    """Wait until the scheduler has looked at the pod and found no place; returns why."""

    def refused() -> str:
        conditions = get(api, namespace, name)["status"].get("conditions", [])
        reasons = [c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
        return str(reasons[0].get("message", "no message")) if reasons else ""

    return wait_until(f"pod {name} finds no place", refused, timeout=timeout, interval=0.1)


def node_of(api: Api, namespace: str, name: str) -> str | None:
    """Where the pod is bound, or None."""
    bound: str | None = get(api, namespace, name)["spec"].get("nodeName")
    return bound
