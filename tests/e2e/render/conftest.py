"""Rendered jobs on the two real nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lent_queue import lent_queue_spec
from orchestra.api import TorchrunJob, TorchrunQueue
from orchestra.api.base import from_builtins
from orchestra.render import Options, Target, render
from testbed.cluster import Cluster

Json = dict[str, Any]


class Deployed:
    """One namespace, and a job deployed there without our operator."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    def kubectl(self, *words: str, check: bool = True, text: str | None = None) -> str:
        """kubectl in the namespace."""
        return self.cluster.kubectl("-n", self.namespace, *words, check=check, text=text)

    def apply(self, name: str, target: Target, command: Any, **spec: Any) -> None:
        """Render a job of two nodes with two processes each, and apply it as a user would."""
        queue_spec = lent_queue_spec() | spec.pop("queue", {})
        queue = from_builtins({"metadata": {"name": "queue"}, "spec": queue_spec}, TorchrunQueue)
        size = {"numNodes": 2, "gpusPerNode": 2}
        job_spec = {"jobQueue": "queue", "command": command} | size | spec
        job = from_builtins({"metadata": {"name": name}, "spec": job_spec}, TorchrunJob)
        self.kubectl("apply", "-f", "-", text=render(queue, job, target, Options()).text)

    def pods(self, name: str) -> list[Json]:
        """The job's worker pods."""
        selector = f"torchrun-job-name={name},app.kubernetes.io/component=worker"
        found: list[Json] = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return found

    def logs(self, name: str) -> str:
        """What all workers said, so far as it is there."""
        names = [pod["metadata"]["name"] for pod in self.pods(name)]
        return "".join(self.kubectl("logs", pod, "--all-containers", check=False) for pod in names)

    def wait_for_log(self, name: str, text: str, timeout: float = 300.0) -> str:
        """The logs once `text` is in them."""
        end = time.monotonic() + timeout
        while text not in (found := self.logs(name)):
            if time.monotonic() > end:
                pods = self.kubectl("get", "pods,events", "-o", "wide", check=False)
                raise TimeoutError(f"{name} never said {text!r}:\n{found[-3000:]}\n{pods}")
            time.sleep(0.5)
        return found


@pytest.fixture
def deployed(cluster: Cluster, cluster_namespace: str) -> Iterator[Deployed]:
    """A namespace to deploy to; what runs there is ended before the next test."""
    made = Deployed(cluster, cluster_namespace)
    yield made
    made.kubectl("delete", "statefulsets,jobs", "--all", "--cascade=background", check=False)
