"""The cache is what the API server has: after every fault that a server and a network can have."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec.structs import replace

from kube_parts import QUICK, ConfigMap, Seen, connect, eventually, manifest, reflecting
from orchestra.kube.listing import Selection
from orchestra.kube.objects import CONFIG_MAPS
from orchestra.kube.reflector import Reflector, ReflectorOptions
from testbed.control_plane import ControlPlane

LIST = replace(QUICK, watch_list=False)


def names(reflector: Reflector[ConfigMap]) -> set[str]:
    return {item.metadata.name for item in reflector.cache} - {"kube-root-ca.crt"}


@contextlib.asynccontextmanager
async def following(
    kubeconfig: Path, selection: Selection, options: ReflectorOptions = QUICK
) -> AsyncIterator[Reflector[ConfigMap]]:
    """A reflector that has been whole once."""
    async with connect(kubeconfig) as client, reflecting(client, selection, options) as reflector:
        await reflector.wait_synced()
        yield reflector


async def follow(plane: ControlPlane, namespace: str, options: ReflectorOptions) -> None:
    path = CONFIG_MAPS.collection(namespace)
    plane.admin.create(path, manifest("before"))
    async with following(plane.admin_kubeconfig, Selection(namespace=namespace), options) as reflector:
        assert "before" in names(reflector)
        plane.admin.create(path, manifest("after", x="1"))
        await eventually("the birth is seen", lambda: "after" in names(reflector))
        plane.admin.patch(f"{path}/after", {"data": {"x": "2"}})
        await eventually("the change is seen", lambda: {"x": "2"} in [item.data for item in reflector.cache])
        plane.admin.delete(f"{path}/before")
        await eventually("the death is seen", lambda: names(reflector) == {"after"})
        assert reflector.lists.value == 1


def test_the_initial_objects_come_on_the_watch_itself(control_plane: ControlPlane, namespace: str) -> None:
    asyncio.run(follow(control_plane, namespace, QUICK))


def test_where_asked_to_it_lists_first(control_plane: ControlPlane, namespace: str) -> None:
    asyncio.run(follow(control_plane, namespace, LIST))


def test_two_thousand_objects_are_listed_in_pages_and_on_the_watch(control_plane: ControlPlane, namespace: str) -> None:
    async def run() -> None:
        async with connect(control_plane.admin_kubeconfig) as client:
            made = [client.create(CONFIG_MAPS, namespace, manifest(f"c-{n}"), ConfigMap) for n in range(2000)]
            await asyncio.gather(*made)
            selection = Selection(namespace=namespace)
            assert len(await client.pages(CONFIG_MAPS, ConfigMap, selection, limit=300)) == 7
            for options in (replace(LIST, page=300), QUICK):
                async with reflecting(client, selection, options) as reflector:
                    await reflector.wait_synced()
                    assert names(reflector) == {f"c-{n}" for n in range(2000)}

    asyncio.run(run())
    control_plane.admin.delete(CONFIG_MAPS.collection(namespace))


def test_the_server_selects_by_labels_and_fields(control_plane: ControlPlane, namespace: str) -> None:
    path = CONFIG_MAPS.collection(namespace)
    for name, tier in (("a", "x"), ("b", "y"), ("c", "x")):
        control_plane.admin.create(path, manifest(name, labels={"tier": tier}))

    async def run() -> None:
        by_label = Selection(namespace=namespace, labels="tier in (x)")
        async with following(control_plane.admin_kubeconfig, by_label) as reflector:
            assert names(reflector) == {"a", "c"}
            control_plane.admin.patch(f"{path}/a", {"metadata": {"labels": {"tier": "y"}}})
            await eventually("it left the selection", lambda: names(reflector) == {"c"})
        by_field = Selection(namespace=namespace, fields="metadata.name=b")
        async with following(control_plane.admin_kubeconfig, by_field, LIST) as reflector:
            assert names(reflector) == {"b"}

    asyncio.run(run())


def test_deletions_that_nobody_told_are_found_after_410(control_plane: ControlPlane, namespace: str) -> None:
    """The API server is killed, objects vanish from etcd, and with them all history."""
    path = CONFIG_MAPS.collection(namespace)
    for name in ("dies", "stays", "reborn"):
        control_plane.admin.create(path, manifest(name))

    def kill_forget_restart() -> None:
        control_plane.api_server.kill9()
        for name in ("dies", "reborn"):
            assert control_plane.etcd_delete(f"/registry/configmaps/{namespace}/{name}") == 1
        control_plane.api_server.restart()
        control_plane.admin.create(path, manifest("reborn"))
        control_plane.api_server.kill9()
        control_plane.etcd_compact()
        control_plane.api_server.restart()

    async def run() -> None:
        # The watch passes a gate that stays shut until the history is gone: else it may see it all happen.
        with control_plane.proxy() as proxy:
            async with following(proxy.kubeconfig, Selection(namespace=namespace)) as reflector:
                seen = Seen(reflector.cache)
                seen.words.clear()
                proxy.cut()
                await asyncio.to_thread(kill_forget_restart)
                proxy.heal()
                await eventually("the deletion is seen", lambda: names(reflector) == {"stays", "reborn"})
                control_plane.admin.create(path, manifest("new"))
                await eventually("the watch goes on", lambda: "new" in names(reflector))
                assert reflector.lists.value == 2
                changes = [word for word in seen.words if "kube-root-ca" not in word]
                assert sorted(changes) == ["+new", "+reborn", "-dies", "-reborn"]
                assert changes.index("-reborn") < changes.index("+reborn")

    asyncio.run(run())


def test_a_frozen_network_is_noticed_and_outlived(control_plane: ControlPlane, namespace: str) -> None:
    path = CONFIG_MAPS.collection(namespace)

    async def run() -> None:
        with control_plane.proxy() as proxy:
            options = replace(QUICK, silence=1.0)
            async with following(proxy.kubeconfig, Selection(namespace=namespace), options) as reflector:
                proxy.freeze()
                before = reflector.errors.value
                control_plane.admin.create(path, manifest("missed"))
                # Nothing was closed and nothing was reset: only the silence tells.
                await eventually("the silence is noticed", lambda: reflector.errors.value > before)
                assert "missed" not in names(reflector)
                proxy.reset_connections()
                proxy.thaw()
                await eventually("nothing was missed", lambda: "missed" in names(reflector))
                assert reflector.lists.value == 1

    asyncio.run(run())


def test_a_reset_connection_resumes_where_it_was(control_plane: ControlPlane, namespace: str) -> None:
    path = CONFIG_MAPS.collection(namespace)

    async def run() -> None:
        with control_plane.proxy() as proxy:
            async with following(proxy.kubeconfig, Selection(namespace=namespace)) as reflector:
                for _ in range(5):
                    proxy.reset_connections()
                    name = f"c-{secrets.token_hex(2)}"
                    control_plane.admin.create(path, manifest(name))
                    await eventually("it is seen", lambda name=name: name in names(reflector))  # type: ignore[misc]
                assert reflector.lists.value == 1

    asyncio.run(run())
