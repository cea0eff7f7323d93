"""The workspace store against a real API server: whose token it is decides what exists, and a cut costs nothing."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestra.cluster.bridge import Bridge
from orchestra.cluster.workspace import NoStore, send_folder
from orchestra.kube.client import Client
from orchestra.kube.config import load_kubeconfig
from orchestra.sync.blobs import Blobs
from orchestra.sync.callers import AUDIENCE
from orchestra.sync.client import DirectAsk, push, served_store
from orchestra.sync.errors import Damaged, Missing, NoAccess
from orchestra.sync.hashing import hash_of
from orchestra.sync.server import PART_HEADER
from orchestra.sync.snapshot import Limits, snapshot
from orchestra.sync.workspace import deliver
from testbed.control_plane import ControlPlane
from testbed.ports import free_port

pytestmark = pytest.mark.control_plane


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

    def start(self) -> None:
        words = [sys.executable, "-m", "orchestra.sync.server", "--store", (self._folder / "kept").as_uri(),
                 "--uploads", str(self._folder / "uploads"), "--listen", f"0.0.0.0:{self.port}",
                 "--kubernetes", self._server, "--token-file", str(self._folder / "token"),
                 "--ca-file", str(self._folder / "ca.crt")]  # fmt: skip
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


@pytest.fixture
def other(control_plane: ControlPlane) -> Iterator[str]:
    with control_plane.namespace("other-") as name:
        _default_account(control_plane, name)
        yield name


def _default_account(plane: ControlPlane, namespace: str) -> None:
    """The controller that makes it may take a moment, or not be there at all."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    if plane.admin.find(f"{path}/default") is None:
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        plane.admin.create(path, body)


@pytest.fixture
def store(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[StoreProcess]:
    _default_account(control_plane, namespace)
    folder = tmp_path / "store"
    folder.mkdir()
    made = StoreProcess(control_plane, namespace, folder)
    yield made
    made.kill()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "package").mkdir(parents=True)
    (made / "train.py").write_text("print('hello')\n")
    (made / "package" / "weights.bin").write_bytes(os.urandom(5 << 20))
    return made


def test_a_namespace_sees_its_own_snapshots_and_nobody_elses(
    store: StoreProcess, namespace: str, other: str, project: Path, tmp_path: Path
) -> None:
    taken = snapshot(project)
    pushed = push(taken, store.ask(namespace))
    assert (pushed.id, pushed.blobs) == (taken.id, 2)
    assert push(taken, store.ask(namespace)).sent == 0
    token = tmp_path / "token"
    token.write_text(store.token(namespace))
    applied = deliver(served_store(store.url, token), taken.id, Blobs(tmp_path / "blobs"), tmp_path / "app")
    assert (applied.tree / "train.py").read_text() == "print('hello')\n"
    assert (applied.tree / "package" / "weights.bin").read_bytes() == (project / "package" / "weights.bin").read_bytes()

    token.write_text(store.token(other))
    with pytest.raises(Missing):
        deliver(served_store(store.url, token), taken.id, Blobs(tmp_path / "blobs-2"), tmp_path / "app-2")
    assert push(taken, store.ask(other)).blobs == 2, "not even the blobs are known to another namespace"
    for wrong in (store.ask(namespace, "https://kubernetes.default.svc"), DirectAsk(store.url, lambda: "nonsense"),
                  DirectAsk(store.url, lambda: "")):  # fmt: skip
        with pytest.raises(NoAccess):
            wrong("GET", f"/v1/snapshots/{taken.id}", None, {})


def test_an_upload_goes_on_where_a_kill_cut_it_off(store: StoreProcess, namespace: str, project: Path) -> None:
    ask, parts = store.ask(namespace), list[int]()

    def fragile(method: str, path: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        if method == "PUT":
            parts.append(int(path.rsplit("/", 1)[1]))
            if len(parts) == 3:
                store.kill()
                store.start()
        return ask(method, path, body, headers)

    taken = snapshot(project)
    push(taken, fragile)
    assert parts[:5] == [0, 1 << 20, 2 << 20, 3 << 20, 4 << 20], "each part was sent once"
    store.kill()
    store.start()
    ask("GET", f"/v1/snapshots/{taken.id}", None, {})  # what was reported outlives the store


def test_damaged_parts_and_names_that_lie_are_refused(store: StoreProcess, namespace: str) -> None:
    ask, name = store.ask(namespace), "0" * 64
    with pytest.raises(Damaged, match="send it again"):
        ask("PUT", f"/v1/uploads/{name}/0", b"content", {PART_HEADER: "1" * 64})
    with pytest.raises(Missing, match="go on from there"):
        ask("PUT", f"/v1/uploads/{name}/5", b"content", {PART_HEADER: hash_of(b"content")})
    ask("PUT", f"/v1/uploads/{name}/0", b"content", {PART_HEADER: hash_of(b"content")})
    for kind in ("packs", "snapshots"):
        with pytest.raises((Damaged, Missing)):
            ask("POST", f"/v1/{kind}/{name}", b"", {})
    for path in ("/v1/packs/../../etc/passwd", "/v1/snapshots/" + "a" * 63, "/v1/uploads/x/0"):
        with pytest.raises(Missing):
            ask("GET", path, None, {})


def test_the_command_line_reaches_it_through_the_api_server(
    store: StoreProcess, control_plane: ControlPlane, namespace: str, project: Path, tmp_path: Path
) -> None:
    client, bridge = Client(load_kubeconfig(control_plane.admin_kubeconfig), manager="test"), Bridge()
    try:
        with pytest.raises(NoStore, match="there is no workspace store"):
            send_folder(bridge, client, namespace, project, [], Limits(), system=namespace)
        meta = {"name": "orchestra-workspace"}
        control_plane.admin.create(
            f"/api/v1/namespaces/{namespace}/services",
            {"apiVersion": "v1", "kind": "Service", "metadata": meta,
             "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 8080, "targetPort": store.port}]}},
        )  # fmt: skip
        # The API server only passes on to pods, so this machine's address has to be one's.
        pods = f"/api/v1/namespaces/{namespace}/pods"
        spec = {"containers": [{"name": "store", "image": "store"}], "terminationGracePeriodSeconds": 0}
        control_plane.admin.create(pods, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        address = _own_address()
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        control_plane.admin.patch(f"{pods}/{meta['name']}/status", {"status": status})
        target = {"kind": "Pod", "name": meta["name"], "namespace": namespace}
        control_plane.admin.create(
            f"/api/v1/namespaces/{namespace}/endpoints",
            {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta,
             "subsets": [{"addresses": [{"ip": address, "targetRef": target}],
                          "ports": [{"name": "http", "port": store.port}]}]},
        )  # fmt: skip
        taken = send_folder(bridge, client, namespace, project, [], Limits(), system=namespace)
        token = tmp_path / "token"
        token.write_text(store.token(namespace))
        applied = deliver(served_store(store.url, token), taken.id, Blobs(tmp_path / "blobs"), tmp_path / "app")
        assert (applied.tree / "train.py").exists()
    finally:
        bridge.close(client.close)


def _own_address() -> str:
    """An address of this machine that the API server may use: loopback is refused."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.255.255.255", 1))  # sends nothing
        return str(probe.getsockname()[0])
