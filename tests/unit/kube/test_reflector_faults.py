"""Faults no real server makes on demand, by one that does: refusals, echoes, old servers, strange objects."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from aiohttp import web

from kube_parts import QUICK, ConfigMap, Seen, eventually, misbehaving_server, reflecting
from orchestra.kube.cache import Cache
from orchestra.kube.client import Client
from orchestra.kube.config import Access
from orchestra.kube.objects import CONFIG_MAPS, Key
from orchestra.kube.reflector import Reflector, ReflectorOptions

Json = dict[str, Any]
END = {"k8s.io/initial-events-end": "true"}


def event(kind: str, name: str, version: int, uid: str = "u", **fields: Any) -> Json:
    metadata = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": str(version)}
    return {"type": kind, "object": {"metadata": metadata, **fields}}


def bookmark(version: int, *, end: bool = False) -> Json:
    return {
        "type": "BOOKMARK",
        "object": {"metadata": {"resourceVersion": str(version), "annotations": END if end else {}}},
    }


def gone_event() -> Json:
    return {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old resource version"}}


class Server:
    """Answers the n-th watch with the n-th script, and stays silent after the last."""

    def __init__(self, *watches: Sequence[Json], lists: Sequence[Json] = ()) -> None:
        self.watches = list(watches)
        self.lists = list(lists)
        self.asked: list[dict[str, str]] = []

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        if "watch" not in request.query:
            return web.json_response(self.lists.pop(0))
        answer = web.StreamResponse()
        await answer.prepare(request)
        script = self.watches.pop(0) if self.watches else None
        for line in script or ():
            await answer.write(json.dumps(line).encode() + b"\n")
        if script is None or not self.watches:
            await asyncio.Event().wait()
        return answer


def against(
    server: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    check: Callable[[Reflector[ConfigMap]], Awaitable[None]],
    options: ReflectorOptions = QUICK,
) -> None:
    async def run() -> None:
        async with (
            misbehaving_server(server) as url,
            Client(Access(server=url), manager="test") as client,
            reflecting(client, options=options) as reflector,
        ):
            await check(reflector)

    asyncio.run(run())


def names(reflector: Reflector[ConfigMap]) -> list[str]:
    return sorted(item.metadata.name for item in reflector.cache)


def test_events_three_times_over_and_old_ones_change_nothing() -> None:
    story = [
        event("ADDED", "a", 11),
        event("ADDED", "b", 12),
        event("MODIFIED", "a", 13, data={"x": "new"}),
        event("DELETED", "b", 14),
    ]
    echoes = [line for line in story for _ in range(3)] + story
    server = Server([bookmark(10, end=True), *echoes, event("ADDED", "c", 15)])

    async def check(reflector: Reflector[ConfigMap]) -> None:
        seen = Seen(reflector.cache)
        await eventually("all came", lambda: "c" in names(reflector))
        assert seen.words == ["+a", "+b", "~a", "-b", "+c"]
        assert names(reflector) == ["a", "c"]
        assert reflector.stale.value == 12
        found = reflector.cache.get(Key("default", "a"))
        assert found is not None
        assert found.data == {"x": "new"}

    against(server, check)


def test_410_as_an_event_lists_again_and_finds_the_deletion() -> None:
    server = Server(
        [event("ADDED", "a", 1), event("ADDED", "b", 2), bookmark(10, end=True), gone_event()],
        [event("ADDED", "b", 2), bookmark(20, end=True)],
    )

    async def check(reflector: Reflector[ConfigMap]) -> None:
        await eventually("listed twice", lambda: reflector.lists.value == 2)
        assert names(reflector) == ["b"]
        assert [asked.get("sendInitialEvents") for asked in server.asked] == ["true", "true"]

    against(server, check)


def test_an_ended_watch_resumes_from_the_last_bookmark() -> None:
    server = Server([event("ADDED", "a", 1), bookmark(10, end=True), bookmark(42)], [])

    async def check(reflector: Reflector[ConfigMap]) -> None:
        await eventually("asked twice", lambda: len(server.asked) == 2)
        assert server.asked[1]["resourceVersion"] == "42"
        assert "sendInitialEvents" not in server.asked[1]
        assert reflector.lists.value == 1

    against(server, check)


@pytest.mark.parametrize("status", [403, 500, 200])
def test_a_refused_watch_is_no_hot_loop(status: int) -> None:
    """Within 2 s: 0.2 + 0.4 + 0.8 + ... leaves room for 4 or 5 requests, not for hundreds. 200 is an empty answer."""
    count = 0

    async def refuse(_: web.BaseRequest) -> web.StreamResponse:
        nonlocal count
        count += 1
        return web.json_response({"message": "no"} if status != 200 else None, status=status)

    async def check(reflector: Reflector[ConfigMap]) -> None:
        await asyncio.sleep(2.0)  # the rate is what is tested
        assert 2 <= count <= 8
        assert not reflector.synced

    against(refuse, check, ReflectorOptions())


def test_the_server_is_left_alone_for_as_long_as_it_asks() -> None:
    times: list[float] = []

    async def refuse(_: web.BaseRequest) -> web.StreamResponse:
        times.append(asyncio.get_running_loop().time())
        return web.json_response({}, status=429, headers={"Retry-After": "1"})

    async def check(_: Reflector[ConfigMap]) -> None:
        await eventually("asked twice", lambda: len(times) == 2)
        assert times[1] - times[0] >= 1.0

    against(refuse, check)


def test_where_watch_list_is_refused_pages_are_listed_and_a_lost_page_starts_over() -> None:
    def page(name: str, more: str = "") -> Json:
        metadata = {"resourceVersion": "30", **({"continue": more} if more else {})}
        return {"metadata": metadata, "items": [event("", name, 1)["object"]]}

    everything = {"metadata": {"resourceVersion": "31"}, "items": [event("", n, 1)["object"] for n in ("a", "b", "c")]}
    answers = [page("a", "1"), web.json_response({"code": 410, "reason": "Expired"}, status=410), everything]
    asked: list[dict[str, str]] = []

    async def old_server(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(dict(request.query))
        if "sendInitialEvents" in request.query:
            return web.json_response({"code": 422, "reason": "Invalid", "message": "sendInitialEvents"}, status=422)
        if "watch" in request.query:
            return await silent(request)
        answer = answers.pop(0)
        return answer if isinstance(answer, web.Response) else web.json_response(answer)

    async def check(reflector: Reflector[ConfigMap]) -> None:
        await eventually("listed, watching", lambda: reflector.synced and "watch" in asked[-1])
        assert names(reflector) == ["a", "b", "c"]
        assert [one.get("limit") for one in asked] == [None, "500", "500", None, None]
        assert asked[-1]["resourceVersion"] == "31"

    against(old_server, check)


async def silent(request: web.BaseRequest) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    await asyncio.Event().wait()
    return answer


def test_a_server_that_never_ends_the_initial_objects_is_listed() -> None:
    listing = {"metadata": {"resourceVersion": "5"}, "items": None}
    server = Server([event("ADDED", "a", 1)], lists=[listing])

    async def check(reflector: Reflector[ConfigMap]) -> None:
        await asyncio.wait_for(reflector.wait_synced(), 30)
        assert names(reflector) == []
        assert "limit" in server.asked[1]

    against(server, check, ReflectorOptions(watch_list_patience=0.3))


def test_an_object_that_cannot_be_read_hides_no_other_and_does_not_vanish() -> None:
    server = Server(
        [
            event("ADDED", "a", 1, data={"x": "1"}),
            event("ADDED", "odd", 2, data="not a map"),
            bookmark(10, end=True),
            event("MODIFIED", "a", 11, data="not a map either"),
            event("ADDED", "b", 12),
        ]
    )

    async def check(reflector: Reflector[ConfigMap]) -> None:
        await eventually("the last came", lambda: "b" in names(reflector))
        assert names(reflector) == ["a", "b"]
        assert {key.name for key in reflector.undecodable} == {"a", "odd"}
        assert "$.data" in reflector.undecodable[Key("default", "odd")]

    against(server, check)


def test_a_line_larger_than_every_buffer_comes_whole() -> None:
    large = "x" * 3_000_000
    server = Server([bookmark(10, end=True), event("ADDED", "a", 11, data={"x": large})])

    async def check(reflector: Reflector[ConfigMap]) -> None:
        await eventually("it came", lambda: names(reflector) == ["a"])
        assert [item.data for item in reflector.cache] == [{"x": large}]

    against(server, check)


def test_a_kind_that_may_be_missing_is_empty_until_it_is_served() -> None:
    server = Server([event("ADDED", "a", 1), bookmark(10, end=True)])
    missing = [True]

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"code": 404}, status=404) if missing else await server(request)

    async def run() -> None:
        async with misbehaving_server(serve) as url, Client(Access(server=url), manager="test") as client:
            needed = Reflector(client, CONFIG_MAPS, ConfigMap, Cache(), options=QUICK)
            optional = Reflector(client, CONFIG_MAPS, ConfigMap, Cache(), options=QUICK, optional=True)
            tasks = [asyncio.create_task(one.run()) for one in (needed, optional)]
            await asyncio.wait_for(optional.wait_synced(), 30)
            assert optional.served is False
            await eventually("the other was told too", lambda: needed.served is False)
            assert not needed.synced
            tasks[0].cancel()
            missing.clear()
            await eventually("it is there", lambda: names(optional) == ["a"])
            assert optional.served
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    asyncio.run(run())


def test_a_kind_that_may_be_missing_is_told_once_and_never_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=404, text="404 page not found")

    async def run() -> None:
        async with misbehaving_server(serve) as url, Client(Access(server=url), manager="test") as client:
            optional = Reflector(client, CONFIG_MAPS, ConfigMap, Cache(), options=QUICK, optional=True)
            task = asyncio.create_task(optional.run())
            await eventually("asked often", lambda: optional.errors.value >= 12)
            task.cancel()
            await asyncio.wait({task})

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    said = [one.levelname for one in caplog.records if "watch of configmaps" in one.getMessage()]
    assert said == ["INFO"]


async def pieces(stream: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in stream])


def test_a_log_is_streamed() -> None:
    asked: list[str] = []

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.path_qs)
        return web.Response(body=b"one\ntwo\n")

    async def run() -> None:
        async with misbehaving_server(serve) as url, Client(Access(server=url), manager="test") as client:
            assert await pieces(client.logs(Key("a", "b"), container="main", tail=5)) == b"one\ntwo\n"
            assert asked == ["/api/v1/namespaces/a/pods/b/log?container=main&tailLines=5"]

    asyncio.run(run())
