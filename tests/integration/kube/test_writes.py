"""Nothing of a stranger's is touched, nothing is created twice, no update is lost."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube_parts import ConfigMap, connect, eventually, manifest, pod_manifest, reflecting
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError
from orchestra.kube.events import EventRecorder, ObjectReference
from orchestra.kube.expectations import Expectations
from orchestra.kube.listing import Selection
from orchestra.kube.objects import CONFIG_MAPS, EVENTS, PODS, SERVICES, Key, Metadata, MetadataOnly, Resource, Slim
from orchestra.kube.status import StatusWriter
from orchestra.kube.writes import (
    AlreadyOurs,
    Child,
    Created,
    NotControlled,
    NotOurs,
    Replaced,
    apply_owned,
    create_child,
    create_children,
    delete_owned,
)
from testbed.api import Json
from testbed.control_plane import ControlPlane

THINGS = Resource("kube-tests.example.com", "v1", "Thing", "things")


def run(plane: ControlPlane, test: Callable[[Client], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with connect(plane.admin_kubeconfig) as client:
            await asyncio.wait_for(test(client), 120)

    asyncio.run(connected())


def an_owner(plane: ControlPlane, namespace: str, name: str = "owner") -> Json:
    return plane.admin.create(CONFIG_MAPS.collection(namespace), manifest(name))


def child(namespace: str, name: str, owner: Json) -> Child:
    return Child(CONFIG_MAPS, Key(namespace, name), manifest(name, owner=owner))


def test_a_child_is_created_once_and_known_again(control_plane: ControlPlane, namespace: str) -> None:
    owner = an_owner(control_plane, namespace)
    uid: str = owner["metadata"]["uid"]

    async def test(client: Client) -> None:
        first = await create_child(client, child(namespace, "a", owner), owner_uid=uid)
        assert isinstance(first, Created)
        second = await create_child(client, child(namespace, "a", owner), owner_uid=uid)
        assert isinstance(second, AlreadyOurs)
        assert second.metadata.uid == first.metadata.uid

    run(control_plane, test)


@pytest.mark.parametrize("resource", [CONFIG_MAPS, SERVICES])
def test_a_strangers_object_of_our_name_is_untouched(
    control_plane: ControlPlane, namespace: str, resource: Resource
) -> None:
    owner = an_owner(control_plane, namespace)
    other = an_owner(control_plane, namespace, "other")
    bodies: dict[str, Json] = {"ConfigMap": {"data": {"x": "theirs"}}, "Service": {"spec": {"ports": [{"port": 80}]}}}
    path = resource.path(Key(namespace, "a"))
    theirs = control_plane.admin.create(
        resource.collection(namespace), {"metadata": {"name": "a"}, **bodies[resource.kind]}
    )
    ours = {**manifest("a", owner=owner), "kind": resource.kind, **bodies[resource.kind]}

    async def test(client: Client) -> None:
        uid = owner["metadata"]["uid"]
        outcome = await create_child(client, Child(resource, Key(namespace, "a"), ours), owner_uid=uid)
        assert isinstance(outcome, NotOurs)
        assert str(outcome) == f"{resource.kind} {namespace}/a exists and does not belong to this object"
        for owner_uid in (uid, other["metadata"]["uid"]):
            with pytest.raises(NotControlled):
                await apply_owned(client, resource, outcome.metadata, ours, MetadataOnly, owner_uid=owner_uid)
            with pytest.raises(NotControlled):
                await delete_owned(client, resource, outcome.metadata, owner_uid=owner_uid)

    run(control_plane, test)
    assert control_plane.admin.get(path) == theirs


def test_an_object_made_again_under_its_name_is_not_hit(control_plane: ControlPlane, namespace: str) -> None:
    owner = an_owner(control_plane, namespace)
    uid: str = owner["metadata"]["uid"]
    path = f"{CONFIG_MAPS.collection(namespace)}/a"

    async def test(client: Client) -> None:
        created = await create_child(client, child(namespace, "a", owner), owner_uid=uid)
        assert isinstance(created, Created)
        body = manifest("a", owner=owner, x="2")
        applied = await apply_owned(client, CONFIG_MAPS, created.metadata, body, ConfigMap, owner_uid=uid)
        assert applied.data == {"x": "2"}
        control_plane.admin.delete(path)
        with pytest.raises(Replaced):
            await apply_owned(client, CONFIG_MAPS, created.metadata, body, ConfigMap, owner_uid=uid)
        assert control_plane.admin.find(path) is None
        again = control_plane.admin.create(CONFIG_MAPS.collection(namespace), manifest("a", owner=owner))
        with pytest.raises(Replaced):
            await apply_owned(client, CONFIG_MAPS, created.metadata, body, ConfigMap, owner_uid=uid)
        assert not await delete_owned(client, CONFIG_MAPS, created.metadata, owner_uid=uid)
        assert control_plane.admin.get(path) == again
        current = await client.get(CONFIG_MAPS, Key(namespace, "a"), MetadataOnly)
        assert await delete_owned(client, CONFIG_MAPS, current.metadata, owner_uid=uid)
        assert control_plane.admin.find(path) is None

    run(control_plane, test)


def test_many_are_created_wide_and_a_second_time_nothing_is(control_plane: ControlPlane, namespace: str) -> None:
    owner = an_owner(control_plane, namespace)
    uid: str = owner["metadata"]["uid"]
    children = [child(namespace, f"c-{n}", owner) for n in range(150)]

    async def test(client: Client) -> None:
        async with reflecting(client, Selection(namespace=namespace)) as reflector:
            await reflector.wait_synced()
            expectations = Expectations(reflector.cache)
            first = await create_children(client, children, owner_uid=uid, expectations=expectations)
            assert first.complete
            assert len(first.outcomes) == 150
            await eventually("all were seen", lambda: expectations.satisfied(uid))
            assert all(one.key in reflector.cache for one in children)
            second = await create_children(client, children, owner_uid=uid, expectations=expectations)
            assert second.complete
            assert {type(outcome) for outcome in second.outcomes} == {AlreadyOurs}
            assert expectations.satisfied(uid)
            known = reflector.cache.get(children[0].key)
            assert known is not None
            await delete_owned(client, CONFIG_MAPS, known.metadata, owner_uid=uid, expectations=expectations)
            await eventually("the deletion was seen", lambda: expectations.satisfied(uid))

    run(control_plane, test)


def test_creation_cut_off_anywhere_is_completed_by_the_next_try(control_plane: ControlPlane, namespace: str) -> None:
    """A crash in the middle, thirty times at another place; then one undisturbed run."""
    owner = an_owner(control_plane, namespace)
    uid: str = owner["metadata"]["uid"]
    children = [child(namespace, f"c-{n}", owner) for n in range(60)]

    async def test(client: Client) -> None:
        for n in range(30):
            creating = asyncio.create_task(create_children(client, children[: 2 * n], owner_uid=uid))
            for _ in range(n * 3):
                await asyncio.sleep(0)
            creating.cancel()
            await asyncio.wait({creating})
        assert (await create_children(client, children, owner_uid=uid)).complete
        made = await client.list_all(CONFIG_MAPS, MetadataOnly, Selection(namespace=namespace))
        assert sum(item.metadata.controller_uid == uid for item in made) == 60

    run(control_plane, test)


def test_a_full_quota_is_not_asked_by_each_of_a_gang(control_plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    control_plane.admin.create(path, {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}})
    owner = an_owner(control_plane, namespace)

    async def test(client: Client) -> None:
        pods = [Child(PODS, Key(namespace, f"p-{n}"), pod_manifest(f"p-{n}")) for n in range(64)]

        async def quota_counts() -> bool:
            found = await client.get(Resource("", "v1", "ResourceQuota", "resourcequotas"), Key(namespace, "q"), Quota)
            return bool(found.status)

        while not await quota_counts():
            await asyncio.sleep(0.05)
        creation = await create_children(client, pods, owner_uid=owner["metadata"]["uid"])
        assert (len(creation.outcomes), len(creation.errors), creation.untried) == (0, 1, 63)
        assert "exceeded quota" in str(creation.errors[0][1])
        with pytest.raises(ApiError, match="exceeded quota"):
            await client.create(PODS, namespace, pod_manifest("p"), MetadataOnly, dry_run=True)

    run(control_plane, test)


class Quota(Slim, frozen=True):
    metadata: Metadata
    status: dict[str, Any] | None = None


# ---- status


class Condition(Slim, frozen=True):
    type: str
    status: str


class ThingStatus(Slim, frozen=True):
    phase: str = ""
    progress: int = 0
    conditions: list[Condition] = []


class Thing(Slim, frozen=True):
    metadata: Metadata
    status: ThingStatus = ThingStatus()


@pytest.fixture(scope="module")
def things(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> None:
    status = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type", "status"],
                    "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
                },
            }
        },
    }
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"status": status}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{THINGS.plural}.{THINGS.group}"},
        "spec": {
            "group": THINGS.group,
            "scope": "Namespaced",
            "names": {"plural": THINGS.plural, "singular": "thing", "kind": THINGS.kind},
            "versions": [version],
        },
    }
    folder = tmp_path_factory.mktemp("crds")
    (folder / "thing.yaml").write_text(yaml.safe_dump(definition))
    control_plane.install_crds(folder)


def a_thing(plane: ControlPlane, namespace: str) -> Json:
    body = {"apiVersion": THINGS.api_version, "kind": THINGS.kind, "metadata": {"name": "a"}}
    return plane.admin.create(THINGS.collection(namespace), body)


@pytest.mark.usefixtures("things")
def test_discovery_knows_what_is_served(control_plane: ControlPlane) -> None:
    async def test(client: Client) -> None:
        assert await client.served(THINGS)
        assert await client.served(PODS)
        assert not await client.served(Resource("scheduling.run.ai", "v2", "Queue", "queues"))
        assert not await client.served(Resource(THINGS.group, "v1", "Other", "others"))
        assert not await client.served(Resource("", "v1", "Thing", "things"))

    run(control_plane, test)


@pytest.mark.usefixtures("things")
def test_a_status_is_written_when_it_changed_and_only_then(control_plane: ControlPlane, namespace: str) -> None:
    a_thing(control_plane, namespace)
    key = Key(namespace, "a")

    async def test(client: Client) -> None:
        writer = StatusWriter(client, THINGS)
        before = await client.get(THINGS, key, Thing)
        desired = ThingStatus(phase="Running", conditions=[Condition(type="Ready", status="True")])
        assert await writer.write(before.metadata, before.status, desired)
        # The cache is behind: it still has the old status. That is no reason to write again.
        assert not await writer.write(before.metadata, before.status, desired)
        after = await client.get(THINGS, key, Thing)
        assert after.status == desired
        assert not await writer.write(after.metadata, after.status, desired)
        assert not await StatusWriter(client, THINGS).write(after.metadata, after.status, desired)
        control_plane.admin.patch(f"{THINGS.path(key)}/status", {"status": {"phase": "Vandalized"}})
        broken = await client.get(THINGS, key, Thing)
        assert await writer.write(broken.metadata, broken.status, desired)
        assert await writer.write(broken.metadata, broken.status, ThingStatus(progress=7))
        assert (await client.get(THINGS, key, Thing)).status == ThingStatus(progress=7)

    run(control_plane, test)


@pytest.mark.usefixtures("things")
@pytest.mark.parametrize("guarded", [False, True])
def test_four_foreign_writers_lose_nothing_and_we_neither(
    control_plane: ControlPlane, namespace: str, guarded: bool
) -> None:
    a_thing(control_plane, namespace)
    key = Key(namespace, "a")
    rounds = 10

    def foreign(number: int) -> None:
        for n in range(rounds):
            status = {f"theirs{number}": n, "conditions": [{"type": f"Theirs{number}", "status": str(n)}]}
            body = {"apiVersion": THINGS.api_version, "kind": THINGS.kind, "status": status}
            control_plane.admin.apply(f"{THINGS.path(key)}/status", body, manager=f"foreign-{number}")

    async def test(client: Client) -> None:
        writer = StatusWriter(client, THINGS)
        others = [asyncio.to_thread(foreign, number) for number in range(4)]

        async def ours() -> None:
            current = await client.get(THINGS, key, Thing)
            for n in range(rounds):
                desired = ThingStatus(progress=n, conditions=[Condition(type="Ours", status=str(n))])
                assert await writer.write(current.metadata, current.status, desired, guarded=guarded)

        await asyncio.gather(ours(), *others)
        status = control_plane.admin.get(THINGS.path(key))["status"]
        last = rounds - 1
        conditions = {one["type"]: one["status"] for one in status["conditions"]}
        assert conditions == {"Ours": str(last), **{f"Theirs{n}": str(last) for n in range(4)}}
        assert [status[f"theirs{n}"] for n in range(4)] == [last] * 4
        assert status["progress"] == last

    run(control_plane, test)


@pytest.mark.usefixtures("things")
def test_a_guarded_status_never_reaches_a_namesake(control_plane: ControlPlane, namespace: str) -> None:
    a_thing(control_plane, namespace)
    key = Key(namespace, "a")

    async def test(client: Client) -> None:
        old = await client.get(THINGS, key, Thing)
        control_plane.admin.delete(THINGS.path(key))
        writer = StatusWriter(client, THINGS)
        with pytest.raises(Replaced):
            await writer.write(old.metadata, old.status, ThingStatus(phase="Failed"), guarded=True)
        a_thing(control_plane, namespace)
        with pytest.raises(Replaced):
            await writer.write(old.metadata, old.status, ThingStatus(phase="Failed"), guarded=True)
        assert "status" not in control_plane.admin.get(THINGS.path(key))

    run(control_plane, test)


# ---- events


@asynccontextmanager
async def recording(client: Client) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(client, controller="kube-tests", instance="one", series_every=0.1)
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        await asyncio.wait({task})


def test_events_are_said_once_and_counted(control_plane: ControlPlane, namespace: str) -> None:
    owner = an_owner(control_plane, namespace)

    async def test(client: Client) -> None:
        about = ObjectReference(
            api_version="v1", kind="ConfigMap", name="owner", namespace=namespace, uid=owner["metadata"]["uid"]
        )
        async with recording(client) as recorder:
            recorder.emit(about, reason="Started", note="It started.")
            await recorder.flush(30)
            for _ in range(20):
                recorder.emit(about, reason="Waiting", note="No room.", type="Warning")

            def series() -> list[Json]:
                found = control_plane.admin.get(EVENTS.collection(namespace))["items"]
                return [one for one in found if one.get("series", {}).get("count") == 20]

            waiting = (await eventually("the series is counted", series))[0]
            assert waiting["note"] == "No room."
            assert waiting["type"] == "Warning"
            assert waiting["regarding"]["uid"] == owner["metadata"]["uid"]
            events = control_plane.admin.get(EVENTS.collection(namespace))["items"]
            assert sorted(one["reason"] for one in events) == ["Started", "Waiting"]
            assert recorder.dropped.value == 0

    run(control_plane, test)


# ---- who we are


def test_a_client_certificate_is_who_we_are(control_plane: ControlPlane, tmp_path: Path) -> None:
    kubeconfig = control_plane.user_kubeconfig("jane", ["dev"])
    config = yaml.safe_load(kubeconfig.read_text())
    user = config["users"][0]["user"]
    for name in ("client-certificate", "client-key"):
        (tmp_path / name).write_bytes(base64.b64decode(user.pop(f"{name}-data")))
        user[name] = name
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    for path in (kubeconfig, tmp_path / "config"):
        assert asyncio.run(who_am_i(path)) == "jane"


class Review(Slim, frozen=True):
    status: dict[str, Any]


async def who_am_i(kubeconfig: Path) -> str:
    reviews = Resource("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False)
    async with connect(kubeconfig) as client:
        body = {"apiVersion": reviews.api_version, "kind": reviews.kind}
        review = await client.create(reviews, "", body, Review)
        return str(review.status["userInfo"]["username"])
