"""Rendered jobs on the two real nodes, handled with the program's own verbs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lent_queue import lent_queue_spec
from testbed.cluster import Cluster
from testbed.waiting import wait_until

Json = dict[str, Any]


class Deployed:
    """One namespace, and jobs deployed there without our operator."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster, self.namespace, self.folder = cluster, namespace, folder

    def kubectl(self, *words: str, check: bool = True, text: str | None = None) -> str:
        """Kubectl in the namespace."""
        return self.cluster.kubectl("-n", self.namespace, *words, check=check, text=text)

    def orchestra(self, verb: str, *words: str, code: int = 0, timeout: float = 600) -> str:
        """Our own program, as a user runs it; its standard output."""
        done = self._run(verb, *words, timeout=timeout)
        assert done.returncode == code, f"{done.args}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def refused(self, verb: str, *words: str) -> str:
        """The same, where it must not work; what it says."""
        done = self._run(verb, *words, timeout=600)
        assert done.returncode == 1, f"{done.args}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stderr

    def started(self, verb: str, *words: str) -> subprocess.Popen[str]:
        """The same, left running."""
        command, environment = self._command(verb, *words)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, text=True, cwd=self.folder, env=environment, **pipes)  # type: ignore[call-overload,no-any-return]

    def _run(self, verb: str, *words: str, timeout: float) -> subprocess.CompletedProcess[str]:
        command, environment = self._command(verb, *words)
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout, cwd=self.folder, env=environment,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def _command(self, verb: str, *words: str) -> tuple[list[str], dict[str, str]]:
        where = ["--kubeconfig", str(self.cluster.kubeconfig), "-n", self.namespace]
        at = words.index("--") if "--" in words else len(words)
        command = [str(Path(sys.prefix, "bin", "orchestra")), verb, *words[:at], *where, *words[at:]]
        path = f"{self.cluster.programs}:/usr/bin:/bin"
        return command, {"PATH": path, "HOME": str(self.folder), "ORCHESTRA_HOME": str(self.folder / "home")}

    def file(self, name: str, command: Any, **spec: Any) -> str:
        """A file with a queue and a job of two nodes with two processes each."""
        queue = {"metadata": {"name": "queue"}, "spec": lent_queue_spec() | spec.pop("queue", {})}
        size = {"numNodes": 2, "gpusPerNode": 2}
        job = {"metadata": {"name": name}, "spec": {"jobQueue": "queue", "command": command} | size | spec}
        api = {"apiVersion": "torchrun.ai/v1alpha1"}
        path = self.folder / f"{name}.yaml"
        path.write_text(
            yaml.safe_dump_all([api | {"kind": "TorchrunQueue"} | queue, api | {"kind": "TorchrunJob"} | job])
        )
        return str(path)

    def status(self, name: str) -> Json:
        """What `get -o json` shows."""
        found: Json = json.loads(self.orchestra("get", name, "-o", "json"))["status"]
        return found

    def pods(self, name: str) -> list[Json]:
        """The job's worker pods."""
        selector = f"torchrun-job-name={name},app.kubernetes.io/component=worker"
        found: list[Json] = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return found

    def wait_for_pods(self, name: str, number: int) -> None:
        """Wait until so many of them run."""

        def running() -> bool:
            return [pod["status"]["phase"] for pod in self.pods(name)] == ["Running"] * number

        wait_until(f"{number} pods of {name} run", running, interval=0.5)

    def wait_for_step(self, name: str, step: int, nodes: int, timeout: float = 300.0) -> None:
        """Wait until a world of this size has passed a step."""
        end = time.monotonic() + timeout
        while True:
            seen = self.status(name)
            running = seen["workers"].get("running", 0) == nodes == len(self.pods(name))
            if running and ((seen.get("progress") or {}).get("step") or 0) >= step:
                return
            if time.monotonic() > end:
                raise TimeoutError(f"{seen}\n{self.kubectl('get', 'pods,events', check=False)}")
            time.sleep(0.5)


@pytest.fixture
def deployed(cluster: Cluster, cluster_namespace: str, tmp_path: Path) -> Iterator[Deployed]:
    """A namespace to deploy to; what runs there is ended before the next test."""
    made = Deployed(cluster, cluster_namespace, tmp_path)
    yield made
    for kind in ("trainjobs", "pytorchjobs", "statefulsets,jobs"):  # the first two only where Kubeflow is
        made.kubectl("delete", kind, "--all", "--cascade=background", check=False)
