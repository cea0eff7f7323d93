"""The workspace store as a process of this machine, beside a real API server."""

from __future__ import annotations

import base64
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from orchestra.sync.callers import AUDIENCE
from orchestra.sync.client import DirectAsk
from testbed.control_plane import ControlPlane
from testbed.ports import free_port


class StoreProcess:
    """The store as a process that can be killed and started again at the same address."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        self._plane, self._namespace, self._folder = plane, namespace, folder
        self.port = free_port("0.0.0.0")  # noqa: S104 -- the API server comes by this machine's own address
        plane.admin.create(
            f"/api/v1/namespaces/{namespace}/serviceaccounts",
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "store"}},
        )
        subject = {"kind": "ServiceAccount", "name": "store", "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:auth-delegator"}
        plane.admin.create(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
             "metadata": {"name": f"{namespace}-store"}, "roleRef": role, "subjects": [subject]},
        )  # fmt: skip
        config = yaml.safe_load(plane.service_account_kubeconfig(namespace, "store").read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = cluster["server"]
        (folder / "token").write_text(user["token"])
        (folder / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *flags: str) -> None:
        words = [sys.executable, "-m", "orchestra.sync.server", "--store", (self._folder / "kept").as_uri(),
                 "--uploads", str(self._folder / "uploads"), "--listen", f"0.0.0.0:{self.port}",
                 "--kubernetes", self._server, "--token-file", str(self._folder / "token"),
                 "--ca-file", str(self._folder / "ca.crt"), *flags]  # fmt: skip
        self._process = subprocess.Popen(words)
        end = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/healthz", timeout=5):  # noqa: S310
                    return
            except (OSError, urllib.error.URLError):
                assert self._process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def token(self, namespace: str, audience: str = AUDIENCE) -> str:
        answer = self._plane.admin.create(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
             "spec": {"audiences": [audience], "expirationSeconds": 600}},
        )  # fmt: skip
        return str(answer["status"]["token"])

    def ask(self, namespace: str, audience: str = AUDIENCE) -> DirectAsk:
        token = self.token(namespace, audience)
        return DirectAsk(self.url, lambda: token, seconds=30)


def default_account(plane: ControlPlane, namespace: str) -> None:
    """The controller that makes it may take a moment, or not be there at all."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    if plane.admin.find(f"{path}/default") is None:
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        plane.admin.create(path, body)
