"""The workspace store against a real API server: whose token it is decides what exists, and a cut costs nothing."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest

from integration.agent.worker import until
from integration.sync.store_process import StoreProcess
from orchestra.cluster.bridge import Bridge
from orchestra.cluster.workspace import NoStore, Proxy, send_folder
from orchestra.kube.client import Client
from orchestra.kube.config import load_kubeconfig
from orchestra.operator.workspace_store import workspace_manifests
from orchestra.sync.blobs import Blobs
from orchestra.sync.board import Asked, Report
from orchestra.sync.callers import AUDIENCE
from orchestra.sync.client import DirectAsk, push, served_store
from orchestra.sync.errors import Damaged, Missing, NoAccess
from orchestra.sync.hashing import hash_of
from orchestra.sync.server import PART_HEADER
from orchestra.sync.snapshot import Limits, snapshot
from orchestra.sync.workspace import deliver
from testbed.control_plane import ControlPlane
from testbed.crds import install_crds

pytestmark = pytest.mark.control_plane


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
            send_folder(Proxy(bridge, client, namespace, namespace), project, [], Limits())
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
        taken = send_folder(Proxy(bridge, client, namespace, namespace), project, [], Limits())
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


def test_only_what_an_unfinished_job_names_is_kept(
    control_plane: ControlPlane, store: StoreProcess, namespace: str, project: Path, tmp_path: Path
) -> None:
    install_crds(control_plane.admin, Path(__file__).parents[3] / "config" / "crd" / "bases")
    subject = {"kind": "ServiceAccount", "name": "store", "namespace": namespace}
    (rights,) = [body for body in workspace_manifests() if body["kind"] == "ClusterRole"]
    role = {**rights, "metadata": {"name": f"{namespace}-jobs"}}
    group = "rbac.authorization.k8s.io"
    control_plane.admin.create(f"/apis/{group}/v1/clusterroles", role)
    control_plane.admin.create(
        f"/apis/{group}/v1/clusterrolebindings",
        {"apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": role["metadata"],
         "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role["metadata"]["name"]},
         "subjects": [subject]},
    )  # fmt: skip
    ask = store.ask(namespace)
    needed = push(snapshot(project), ask).id
    (project / "train.py").write_text("print('another')\n")
    lone = push(snapshot(project), ask).id
    job = {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunJob", "metadata": {"name": "train"},
           "spec": {"jobQueue": "q", "command": "python train.py", "workspace": {"snapshot": needed}}}  # fmt: skip
    control_plane.admin.create(f"/apis/torchrun.ai/v1alpha1/namespaces/{namespace}/torchrunjobs", job)
    store.kill()
    store.start("--forget-after", "1")

    def forgotten() -> bool:
        try:
            ask("GET", f"/v1/snapshots/{lone}", None, {})
        except Missing:
            return True
        return False

    until(forgotten, 120, "what nobody needs is forgotten")
    token = tmp_path / "token"
    token.write_text(store.token(namespace))
    applied = deliver(served_store(store.url, token), needed, Blobs(tmp_path / "blobs"), tmp_path / "app")
    assert (applied.tree / "train.py").read_text() == "print('hello')\n"
    assert push(snapshot(project), ask).id == lone, "and can be sent again"


def test_another_namespace_neither_hears_orders_nor_gives_them(store: StoreProcess, namespace: str, other: str) -> None:
    ours, theirs = store.ask(namespace), store.ask(other)
    path, report = "/v1/workers/some-uid", msgspec.json.encode(Report(worker="train-0"))
    assert ours("POST", f"{path}?wait=0", report, {}) == b"{}"
    assert theirs("GET", path, None, {}) == b"[]"
    asked = Asked(id="one", generation=1, workers=["train-0"], prepare_seconds=1)
    theirs("POST", "/v1/reloads/some-uid", msgspec.json.encode(asked), {})
    assert ours("POST", f"{path}?wait=0", report, {}) == b"{}", "an order of theirs is none of ours"
    with pytest.raises(Missing):
        ours("GET", "/v1/reloads/some-uid?id=one", None, {})


def test_a_pod_speaks_for_itself_only(control_plane: ControlPlane, store: StoreProcess, namespace: str) -> None:
    spec = {"containers": [{"name": "one", "image": "none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-0"}, "spec": spec}
    made = control_plane.admin.create(f"/api/v1/namespaces/{namespace}/pods", pod)["metadata"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "train-0", "uid": made["uid"]}
    answer = control_plane.admin.create(
        f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
         "spec": {"audiences": [AUDIENCE], "expirationSeconds": 600, "boundObjectRef": bound}},
    )  # fmt: skip
    ask = DirectAsk(store.url, lambda: str(answer["status"]["token"]), seconds=30)
    mine, another = (msgspec.json.encode(Report(worker=name)) for name in ("train-0", "train-1"))
    assert ask("POST", "/v1/workers/some-uid?wait=0", mine, {}) == b"{}"
    with pytest.raises(NoAccess, match="speaks for itself only"):
        ask("POST", "/v1/workers/some-uid?wait=0", another, {})
