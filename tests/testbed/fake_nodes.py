"""Nodes without machines: enough for the real scheduler to bind pods, and for tests to play the kubelet."""

import datetime
from collections.abc import Mapping
from types import TracebackType
from typing import Literal

from testbed.api import Api, Json

DEFAULT_CAPACITY: Mapping[str, str] = {"cpu": "64", "memory": "256Gi", "pods": "250"}

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed"]


class FakeNode:
    """A Node object that says it is Ready. Nothing runs on it: `set_pod_phase` plays the kubelet."""

    def __init__(self, api: Api, name: str, capacity: Mapping[str, str], labels: Mapping[str, str]) -> None:
        self.name = name
        self.path = f"/api/v1/nodes/{name}"
        self._api = api
        amounts = {**DEFAULT_CAPACITY, **capacity}
        node: Json = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels},
            },
        }
        api.create("/api/v1/nodes", node)
        api.patch(f"{self.path}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
        self.set_ready(True)
        # Admission taints each new node until it is Ready. The controller manager takes that away a second
        # later; where there is none, nobody would.
        api.patch(self.path, {"spec": {"taints": None}})

    def __enter__(self) -> "FakeNode":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delete()

    def set_ready(self, ready: bool | None) -> None:
        """Ready, not ready, or (None) unknown: what the node controller writes when a kubelet is silent."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "Ready",
            "status": {True: "True", False: "False", None: "Unknown"}[ready],
            "reason": "FakeNode",
            "message": "set by a test",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        self._api.patch(f"{self.path}/status", {"status": {"conditions": [condition]}}, kind="strategic")

    def delete(self) -> None:
        """Remove the Node object, if it is still there."""
        if self._api.find(self.path) is not None:
            self._api.delete(self.path)


def set_pod_phase(
    api: Api, namespace: str, name: str, phase: PodPhase, *, exit_code: int | None = None, reason: str = ""
) -> Json:
    """Play the kubelet: give a pod a phase, its Ready condition, and the state of its first container."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    container = api.get(path)["spec"]["containers"][0]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    running = phase == "Running"
    state: Json = {"waiting": {"reason": "ContainerCreating"}}
    if running:
        state = {"running": {"startedAt": now}}
    elif phase in ("Succeeded", "Failed"):
        code = exit_code if exit_code is not None else (0 if phase == "Succeeded" else 1)
        reason_of_end = reason or ("Completed" if code == 0 else "Error")
        state = {"terminated": {"exitCode": code, "reason": reason_of_end, "startedAt": now, "finishedAt": now}}
    status: Json = {
        "phase": phase,
        "startTime": now,
        "conditions": [{"type": "Ready", "status": "True" if running else "False", "lastTransitionTime": now}],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": running,
                "restartCount": 0,
                "state": state,
            }
        ],
    }
    return api.patch(f"{path}/status", {"status": status}, kind="strategic")
