"""A whole operator: leases, drains, rights, credentials, and what it costs the server when it is not wanted."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from kube_parts import ConfigMap, connect, eventually, manifest, reflecting
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError
from orchestra.kube.lease import Elector, LeaseOptions
from orchestra.kube.listing import EVERYTHING
from orchestra.kube.manager import Manager, ManagerOptions
from orchestra.kube.objects import CONFIG_MAPS, LEASES, Key
from orchestra.kube.reflector import ReflectorOptions
from testbed.api import Json
from testbed.control_plane import ControlPlane
from testbed.control_plane_options import ControlPlaneOptions, TokenUser
from testbed.pytest_plugin import ControlPlanes
from testbed.waiting import wait_until

PROGRAM = Path(__file__).with_name("operator_process.py")


@contextlib.contextmanager
def operator(plane: ControlPlane, namespace: str, identity: str) -> Iterator[subprocess.Popen[bytes]]:
    """The small operator as a process; killed at the end if it still runs."""
    plane.admin.create(CONFIG_MAPS.collection(namespace), manifest(f"beat-{identity}", count="0"))
    command = [sys.executable, str(PROGRAM), str(plane.admin_kubeconfig), namespace, identity]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "src"})
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def submit(plane: ControlPlane, namespace: str, name: str) -> None:
    plane.admin.create(CONFIG_MAPS.collection(namespace), manifest(name, labels={"job": "yes"}))


def child_by(plane: ControlPlane, namespace: str, name: str) -> str | None:
    found = plane.admin.find(f"{CONFIG_MAPS.collection(namespace)}/{name}-child")
    return None if found is None else str(found["data"]["by"])


def beats(plane: ControlPlane, namespace: str, identity: str) -> int:
    return int(plane.admin.get(f"{CONFIG_MAPS.collection(namespace)}/beat-{identity}")["data"]["count"])


def holder(plane: ControlPlane, namespace: str) -> str:
    lease = plane.admin.find(LEASES.path(Key(namespace, "operator")))
    return "" if lease is None else str(lease["spec"].get("holderIdentity", ""))


def test_a_frozen_leader_is_replaced_and_ends_without_another_act(control_plane: ControlPlane, namespace: str) -> None:
    with operator(control_plane, namespace, "one") as one:
        wait_until("one leads", lambda: beats(control_plane, namespace, "one") > 0)
        submit(control_plane, namespace, "first")
        wait_until("one acts", lambda: child_by(control_plane, namespace, "first") == "one")
        with operator(control_plane, namespace, "two") as two:
            one.send_signal(signal.SIGSTOP)
            submit(control_plane, namespace, "second")
            wait_until("two acts", lambda: child_by(control_plane, namespace, "second") == "two")
            assert holder(control_plane, namespace) == "two"
            before = beats(control_plane, namespace, "one")
            one.send_signal(signal.SIGCONT)
            assert one.wait(30) == 3
            said = one.stdout.read().decode() if one.stdout else ""
            assert "lease" in said
            # One request may have been half-way out of the door: a lease is no fence.
            assert beats(control_plane, namespace, "one") - before <= 1
            assert child_by(control_plane, namespace, "first") == "one"
            after = beats(control_plane, namespace, "two")
            wait_until("two goes on", lambda: beats(control_plane, namespace, "two") > after)
            two.send_signal(signal.SIGTERM)
            assert two.wait(30) == 0
    assert holder(control_plane, namespace) == ""


def test_a_leader_that_ends_well_hands_over_at_once(control_plane: ControlPlane, namespace: str) -> None:
    with operator(control_plane, namespace, "one") as one:
        wait_until("one leads", lambda: beats(control_plane, namespace, "one") > 0)
        with operator(control_plane, namespace, "two"):
            one.send_signal(signal.SIGTERM)
            assert one.wait(30) == 0
            wait_until("two leads", lambda: beats(control_plane, namespace, "two") > 0)
            lease = control_plane.admin.get(LEASES.path(Key(namespace, "operator")))
            assert lease["spec"]["leaseTransitions"] >= 1


def test_an_operator_with_a_role_in_one_namespace_is_ready_and_tells(
    control_plane: ControlPlane, namespace: str
) -> None:
    kubeconfig = a_restricted_account(control_plane, namespace)
    submit(control_plane, namespace, "first")

    async def run() -> None:
        ports: list[int] = []
        done: list[str] = []
        async with connect(kubeconfig) as client:
            options = ManagerOptions(namespaces=(namespace,), health=("127.0.0.1", 0))
            lease = Elector(client, Key(namespace, "operator"), "here", options=LeaseOptions(5.0, 4.0, 0.2))
            manager = Manager(client, lease=lease, options=options)
            manager.on_health_port = ports.append
            jobs = manager.cache(CONFIG_MAPS, ConfigMap, labels="job")
            assert manager.cache(CONFIG_MAPS, ConfigMap, labels="job") is jobs

            async def reconcile(key: Key) -> None:
                done.append(key.name)

            manager.controller("job", reconcile).watch(jobs, lambda job: [job.metadata.key])
            may_write: list[bool] = []

            async def at_end() -> None:
                may_write.append(lease.leading())

            manager.background(asyncio.Event().wait, at_end=at_end)  # type: ignore[arg-type]  # it never ends
            assert manager.health.ready() == ["caches: not yet whole: configmaps"]
            stop = asyncio.Event()
            running = asyncio.create_task(manager.run(stop))
            await eventually("it works", lambda: done == ["first"])
            assert await page(ports[0], "healthz") == (200, "ok")
            assert await page(ports[0], "readyz") == (200, "ok")
            _, text = await page(ports[0], "metrics")
            for name in (
                'workqueue_adds_total{name="job",controller="job"} 1',
                'controller_runtime_reconcile_total{controller="job",result="success"} 1',
                f'leader_election_master_status{{name="{namespace}/operator"}} 1',
                'reflector_lists_total{name="configmaps"} 1',
            ):
                assert name in text
            stop.set()
            await asyncio.wait_for(running, 30)
            assert may_write == [True]
            assert holder(control_plane, namespace) == ""

    asyncio.run(run())


async def page(port: int, name: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/{name}") as answer:
        return answer.status, await answer.text()


def a_restricted_account(plane: ControlPlane, namespace: str) -> Path:
    """A ServiceAccount that may read ConfigMaps and use leases in its namespace, and nothing else."""
    plane.admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "operator"}})
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rules: list[Json] = [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
    ]
    plane.admin.create(f"{rbac}/roles", {"metadata": {"name": "operator"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"}
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": namespace}
    plane.admin.create(
        f"{rbac}/rolebindings", {"metadata": {"name": "operator"}, "roleRef": role, "subjects": [subject]}
    )
    return plane.service_account_kubeconfig(namespace, "operator")


def test_a_watch_that_is_forbidden_is_asked_a_few_times_a_minute(control_planes: ControlPlanes) -> None:
    options = ControlPlaneOptions(
        controller_manager=False, scheduler=False, audit=True, token_users=(TokenUser("nobody"),)
    )
    plane = control_planes(options)
    seconds = 5.0

    async def run() -> None:
        nobody = plane.token_kubeconfig("nobody")
        async with connect(nobody) as client, reflecting(client, EVERYTHING, ReflectorOptions()) as reflector:
            await asyncio.sleep(seconds)  # the rate is what is tested
            assert not reflector.synced

    began = time.monotonic()
    asyncio.run(run())
    events = [event for event in plane.audit_events() if event["user"]["username"] == "nobody"]
    assert {event["responseStatus"]["code"] for event in events} == {403}
    asked = {event["auditID"] for event in events}  # a watch is told twice: begun, ended
    # 0.2, 0.4, 0.8, 1.6, 3.2 ...: five or six in the first seconds, two a minute in the end.
    assert 2 <= len(asked) <= 9, f"{len(asked)} requests in {time.monotonic() - began:.0f} s"


def with_user(kubeconfig: Path, folder: Path, user: Json) -> Path:
    """The same cluster with another way to prove who we are."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = user
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def token_of(kubeconfig: Path) -> str:
    return str(yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"])


async def reads(client: Client, namespace: str) -> bool:
    try:
        await client.get(CONFIG_MAPS, Key(namespace, "a"), ConfigMap)
    except ApiError as error:
        if error.code != 401:
            raise
        return False
    return True


def test_a_rotated_token_is_read_again_when_the_old_one_is_refused(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    control_plane.admin.create(CONFIG_MAPS.collection(namespace), manifest("a"))
    token = tmp_path / "token"
    kubeconfig = with_user(control_plane.admin_kubeconfig, tmp_path, {"tokenFile": "token"})

    async def run() -> None:
        token.write_text("expired")
        async with connect(kubeconfig) as client:
            assert not await reads(client, namespace)
            token.write_text(token_of(control_plane.admin_kubeconfig) + "\n")
            assert await reads(client, namespace)

    asyncio.run(run())


def test_a_plugin_says_who_we_are_and_is_asked_again_when_refused(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    control_plane.admin.create(CONFIG_MAPS.collection(namespace), manifest("a"))
    plugin = tmp_path / "plugin.sh"
    plugin.write_text(
        '#!/bin/sh\necho x >> "$COUNT"\n'
        'printf \'{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1",\'\n'
        'printf \'"status":{"token":"%s"}}\' "$(cat "$TOKEN")"\n'
    )
    plugin.chmod(0o755)
    count, token = tmp_path / "count", tmp_path / "token"
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./plugin.sh",
            "env": [{"name": "COUNT", "value": str(count)}, {"name": "TOKEN", "value": str(token)}],
        }
    }
    kubeconfig = with_user(control_plane.admin_kubeconfig, tmp_path, user)

    async def run() -> None:
        token.write_text(token_of(control_plane.admin_kubeconfig))
        async with connect(kubeconfig) as client:
            assert all(await asyncio.gather(*(reads(client, namespace) for _ in range(10))))
            assert count.read_text() == "x\n"
        token.write_text("expired")
        async with connect(kubeconfig) as client:
            assert not await reads(client, namespace)
            token.write_text(token_of(control_plane.admin_kubeconfig))
            assert await reads(client, namespace)

    asyncio.run(run())


def test_a_plugin_may_hand_out_a_client_certificate(control_plane: ControlPlane, tmp_path: Path) -> None:
    pair = control_plane.certificate_authority.client("jane", ["system:masters"])
    status = {"clientCertificateData": pair.certificate.decode(), "clientKeyData": pair.key.decode()}
    (tmp_path / "printed").write_text(json.dumps({"kind": "ExecCredential", "status": status}))
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "cat",
        "args": [str(tmp_path / "printed")],
        "provideClusterInfo": True,
    }
    kubeconfig = with_user(control_plane.admin_kubeconfig, tmp_path, {"exec": plugin})

    async def run() -> None:
        async with connect(kubeconfig) as client:
            assert len(await client.list_all(CONFIG_MAPS, ConfigMap)) > 0

    asyncio.run(run())


def test_a_server_that_is_not_who_it_should_be_is_refused(control_plane: ControlPlane, tmp_path: Path) -> None:
    config = yaml.safe_load(control_plane.admin_kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    del cluster["certificate-authority-data"]
    path = tmp_path / "kubeconfig"

    async def count() -> int:
        async with connect(path) as client:
            return len(await client.list_all(CONFIG_MAPS, ConfigMap))

    path.write_text(yaml.safe_dump(config))
    with pytest.raises(Exception, match="certificate verify failed"):
        asyncio.run(count())
    cluster["insecure-skip-tls-verify"] = True
    path.write_text(yaml.safe_dump(config))
    assert asyncio.run(count()) >= 0
