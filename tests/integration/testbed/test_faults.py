"""Everything that can go wrong between a client and its API server can be made to go wrong here."""

import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testbed.api import Api, ApiError, Json
from testbed.control_plane import ControlPlane
from testbed.control_plane_options import ControlPlaneOptions
from testbed.ports import free_port
from testbed.processes import Processes, process_state
from testbed.pytest_plugin import ControlPlanes
from testbed.temporary_folder import sweep
from testbed.waiting import wait_until


def config_map(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def test_state_survives_kill_9_of_the_api_server(control_plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    created = control_plane.admin.create(path, config_map("a"))
    control_plane.api_server.kill9()
    with pytest.raises(ConnectionError):
        control_plane.admin.get(f"{path}/a")
    control_plane.api_server.restart()
    assert control_plane.admin.get(f"{path}/a")["metadata"]["uid"] == created["metadata"]["uid"]


def test_state_survives_kill_9_of_etcd(control_plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    created = control_plane.admin.create(path, config_map("a"))
    control_plane.etcd.kill9()
    control_plane.etcd.restart()
    assert control_plane.admin.get(f"{path}/a")["metadata"]["uid"] == created["metadata"]["uid"]
    control_plane.admin.create(path, config_map("b"))


def test_an_old_watch_gets_410_after_a_deletion_behind_its_back(control_plane: ControlPlane, namespace: str) -> None:
    api, path = control_plane.admin, f"/api/v1/namespaces/{namespace}/configmaps"
    api.create(path, config_map("a"))
    old = api.get(path)["metadata"]["resourceVersion"]
    control_plane.api_server.kill9()
    key = f"/registry/configmaps/{namespace}/a"
    assert key in control_plane.etcd_client.keys(f"/registry/configmaps/{namespace}/")
    assert control_plane.etcd_delete(key) == 1
    assert control_plane.etcd_compact() > int(old)
    control_plane.api_server.restart()
    assert control_plane.admin.find(f"{path}/a") is None
    assert watch_is_gone(api, path, old)


def watch_is_gone(api: Api, path: str, resource_version: str) -> bool:
    """410 comes in two shapes: as the answer's status, and as an ERROR event."""
    try:
        event = next(api.watch(path, resource_version=resource_version, timeoutSeconds="30"))
    except ApiError as error:
        return error.status == 410
    return bool(event["type"] == "ERROR" and event["object"]["code"] == 410)


def test_what_one_test_breaks_is_repaired_before_the_next(control_plane: ControlPlane) -> None:
    control_plane.scheduler.kill9()
    control_plane.controller_manager.pause()
    control_plane.etcd.kill9()
    control_plane.api_server.kill9()
    control_plane.repair()
    assert control_plane.scheduler.alive()
    with control_plane.namespace() as name:
        path = f"/api/v1/namespaces/{name}/configmaps/kube-root-ca.crt"  # the controller manager's work
        wait_until("the controllers work", lambda: control_plane.admin.find(path), timeout=120)


def test_a_stopped_api_server_comes_back_on_its_port(control_plane: ControlPlane) -> None:
    watch = control_plane.admin.watch("/api/v1/namespaces")
    next(watch)  # an open watch, which makes the server slow to stop
    control_plane.api_server.stop(timeout=1)
    assert not control_plane.api_server.alive()
    watch.close()
    url = control_plane.url
    control_plane.api_server.restart()
    assert control_plane.url == url
    assert control_plane.admin.ready()


def test_a_frozen_proxy_is_silence_and_nothing_is_lost(control_plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    with control_plane.proxy() as proxy:
        client = Api.from_kubeconfig(proxy.kubeconfig)
        start = client.get(path)["metadata"]["resourceVersion"]
        seen: list[str] = []
        watching = threading.Event()

        def watch() -> None:
            for event in client.watch(path, resource_version=start, timeoutSeconds="60"):
                seen.append(event["object"]["metadata"]["name"])
                watching.set()
                if seen[-1] == "after":
                    return

        thread = threading.Thread(target=watch)
        thread.start()
        control_plane.admin.create(path, config_map("before"))
        assert watching.wait(30)
        proxy.freeze()
        control_plane.admin.create(path, config_map("after"))
        with pytest.raises(TimeoutError):
            client.raw("GET", path, timeout=0.5)
        assert seen == ["before"]
        proxy.thaw()
        thread.join(60)
        assert seen == ["before", "after"]


def test_a_cut_proxy_breaks_a_watch_and_refuses_until_healed(control_plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    with control_plane.proxy() as proxy:
        client = Api.from_kubeconfig(proxy.kubeconfig)
        watch = client.watch(path, timeoutSeconds="60")
        control_plane.admin.create(path, config_map("a"))
        next(watch)
        proxy.cut()
        with pytest.raises(ConnectionError):
            list(watch)
        with pytest.raises(ConnectionError):
            client.get(path)
        proxy.heal()
        assert client.get(path)["items"]
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            client.get(path)
        assert control_plane.admin.get(path)["items"], "only the way through the proxy is broken"


def test_a_taken_port_is_an_error_that_says_so(control_planes: ControlPlanes) -> None:
    bare = ControlPlaneOptions(controller_manager=False, scheduler=False)
    first = control_planes(bare)
    port = int(first.url.rpartition(":")[2])
    with pytest.raises(Exception, match="address already in use"):
        control_planes(ControlPlaneOptions(controller_manager=False, scheduler=False, port=port))
    assert first.admin.ready()


def test_a_port_lost_to_somebody_faster_is_replaced(
    control_planes: ControlPlanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        ports = [somebody.getsockname()[1]]
        monkeypatch.setattr("testbed.control_plane.free_port", lambda *_: ports.pop() if ports else free_port())
        plane = control_planes(ControlPlaneOptions(controller_manager=False, scheduler=False))
        assert plane.admin.ready()


@pytest.mark.control_plane
def test_a_control_plane_that_was_left_running_is_found_and_stopped(tmp_path: Path) -> None:
    options = ControlPlaneOptions(controller_manager=False, scheduler=False, die_with_parent=False)
    plane = ControlPlane(tmp_path / "state", options)
    plane.start()
    try:
        found = ControlPlane.attach(tmp_path / "state")
        assert found.url == plane.url
        assert found.admin.ready()
        found.etcd.restart()
        assert found.admin.get("/api/v1/namespaces/default")
        found.stop()
        assert not plane.api_server.alive()
    finally:
        plane.stop()


@pytest.mark.control_plane
def test_several_are_started_at_the_same_time_from_threads() -> None:
    bare = ControlPlaneOptions(controller_manager=False, scheduler=False)
    planes = [ControlPlane(options=bare) for _ in range(2)]
    try:
        with ThreadPoolExecutor(len(planes)) as pool:
            list(pool.map(ControlPlane.start, planes))
        assert all(plane.admin.ready() for plane in planes), "they outlive the threads that started them"
    finally:
        for plane in planes:
            plane.stop()


@pytest.mark.control_plane
def test_three_starts_and_stops_leave_no_process_and_no_folder() -> None:
    before = our_children()
    for _ in range(3):
        with ControlPlane() as plane:
            assert our_children() != before
        assert our_children() == before
        assert not plane.folder.exists()


@pytest.mark.control_plane
def test_a_killed_test_run_leaves_no_process_and_the_next_removes_its_folder(tmp_path: Path) -> None:
    script = """
import signal
from testbed.control_plane import ControlPlane
with ControlPlane() as plane:
    print(plane.folder, flush=True)
    signal.pause()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # Its own temporary folder, so that no other run sweeps it first.
    environment["TMPDIR"] = str(tmp_path)
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder = Path(run.stdout.readline().strip())
        records = Processes(folder).records()
        assert len(records) == 4
        assert all(process_state(record) == "running" for record in records)
        run.send_signal(signal.SIGKILL)
    wait_until("all are dead", lambda: all(process_state(record) != "running" for record in records))
    assert folder.is_dir()
    assert sweep("orchestra-control-plane-", tmp_path) == [folder]
    assert not folder.exists()


def our_children() -> set[int]:
    """Every process whose parent we are, zombies too."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(text[text.rindex(")") + 2 :].split()[1]) == os.getpid():
            found.add(int(stat.parent.name))
    return found
