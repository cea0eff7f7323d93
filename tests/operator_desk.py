"""The operator at a desk: a real API server and scheduler, nodes without machines, and its process under its own rights."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from testbed.api import ApiError
from testbed.control_plane import ControlPlane
from testbed.fake_nodes import set_pod_phase

Json = dict[str, Any]
OURS = {"for": "gangs"}
"""Label of the nodes of `two_nodes`."""


class Desk:
    """One namespace of a control plane, with what tests of the operator do there."""

    def __init__(self, plane: ControlPlane, namespace: str, said: Callable[[], str] = lambda: "") -> None:
        self.plane, self.api, self.namespace, self._said = plane, plane.admin, namespace, said

    def path(self, kind: str, name: str = "") -> str:
        """Path of our own objects."""
        base = f"/apis/torchrun.ai/v1alpha1/namespaces/{self.namespace}/{kind}s"
        return f"{base}/{name}" if name else base

    def core(self, plural: str, name: str = "") -> str:
        """Path of objects of the core group."""
        base = f"/api/v1/namespaces/{self.namespace}/{plural}"
        return f"{base}/{name}" if name else base

    def queue(self, name: str = "queue", **spec: Any) -> None:
        """A queue of nodes with 8 GPUs."""
        made = {"nodeResources": {"gpus": 8, "memory": "16Gi"}, "image": "none"} | spec
        body = {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunQueue", "metadata": {"name": name}, "spec": made}
        self.api.create(self.path("torchrunqueue"), body)

    def job(self, name: str = "job", **spec: Any) -> Json:
        """A job of two nodes, unless said otherwise."""
        made = {"jobQueue": "queue", "command": "python train.py", "numNodes": 2} | spec
        body = {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunJob", "metadata": {"name": name}, "spec": made}
        created: Json = self.api.create(self.path("torchrunjob"), body)
        return created

    def status(self, name: str = "job") -> Json:
        """The job's status."""
        found: Json = self.api.get(self.path("torchrunjob", name)).get("status") or {}
        return found

    def wait(self, until: Callable[[Json], object], name: str = "job", timeout: float = 120.0) -> Json:
        """The job's status once `until` holds."""
        end = time.monotonic() + timeout
        while True:
            status = self.status(name)
            if until(status):
                return status
            if time.monotonic() > end:
                raise TimeoutError(f"{name} did not get there: {status}\n{self.names('pods')}\n{self._said()[-3000:]}")
            time.sleep(0.2)

    def condition(self, kind: str, name: str = "job", **wanted: str) -> Json:
        """A condition of the job, once it says what is wanted."""

        def found(status: Json) -> Json | None:
            all_of = [c for c in status.get("conditions", []) if c["type"] == kind]
            return next((c for c in all_of if all(c.get(key) == value for key, value in wanted.items())), None)

        one = found(self.wait(found, name))
        assert one is not None
        return one

    def items(self, plural: str, **query: str) -> list[Json]:
        """Objects of the core group."""
        found: list[Json] = self.api.get(self.core(plural), **query)["items"]
        return found

    def names(self, plural: str) -> list[str]:
        """Their names."""
        return sorted(item["metadata"]["name"] for item in self.items(plural))

    def pod_uids(self) -> dict[str, str]:
        """The pods that nobody has deleted: name and UID."""
        live = (pod["metadata"] for pod in self.items("pods") if not pod["metadata"].get("deletionTimestamp"))
        return {meta["name"]: meta["uid"] for meta in live}

    def workers(self, name: str = "job") -> list[Json]:
        """The job's worker pods."""
        return self.items("pods", labelSelector=f"torchrun-job-name={name},torchrun.ai/role=worker")

    def play(self, phase: Any, name: str = "job", *, exit_code: int | None = None) -> None:
        """Play the kubelet for all pods of a job, the store included; one that is gone meanwhile does not matter."""
        for pod in self.items("pods", labelSelector=f"torchrun-job-name={name}"):
            try:
                set_pod_phase(self.api, self.namespace, pod["metadata"]["name"], phase, exit_code=exit_code)
            except ApiError as error:
                if error.status != 404:
                    raise

    def forget(self) -> None:
        """Delete the jobs and their pods at once: no kubelet will."""
        for job in self.api.get(self.path("torchrunjob"))["items"]:
            self.api.delete(self.path("torchrunjob", job["metadata"]["name"]))
        for name in self.names("pods"):
            self._end(name)

    def bury(self) -> None:
        """Play the kubelets that end what was deleted."""
        for pod in self.items("pods"):
            if pod["metadata"].get("deletionTimestamp"):
                self._end(pod["metadata"]["name"])

    def _end(self, pod: str) -> None:
        try:
            self.api.delete(self.core("pods", pod), grace_seconds=0)
        except ApiError as error:
            if error.status != 404:
                raise
