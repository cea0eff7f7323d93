"""What is sent again, what is not, and who waits for whom."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from kube_parts import ConfigMap, eventually, manifest, misbehaving_server
from orchestra.kube.client import Client
from orchestra.kube.config import Access
from orchestra.kube.errors import ApiError, NotLeading, Unreachable
from orchestra.kube.limits import Limits
from orchestra.kube.metrics import Metrics
from orchestra.kube.objects import CONFIG_MAPS, Key, MetadataOnly

A = Key("default", "a")
FOUND = {"metadata": {"name": "a"}}
Answers = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Script:
    """Answers the n-th request with the n-th answer (the last one for ever), and remembers them all."""

    def __init__(self, *answers: tuple[int, dict[str, str]]) -> None:
        self.answers = list(answers)
        self.requests: list[web.BaseRequest] = []

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        status, headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(FOUND if status == 200 else {}, status=status or 200, headers=headers)


def against(server: Answers, check: Callable[[Client], Awaitable[None]], **options: object) -> None:
    async def run() -> None:
        async with misbehaving_server(server) as url:
            client = Client(Access(server=url), manager="test", **options)  # type: ignore[arg-type]
            async with client:
                await asyncio.wait_for(check(client), 60)

    asyncio.run(run())


OK = (200, dict[str, str]())


@pytest.mark.parametrize("trouble", [(503, {}), (429, {}), (0, {}), (500, {"Retry-After": "0"})])
def test_an_idempotent_request_outlives_trouble(trouble: tuple[int, dict[str, str]]) -> None:
    script = Script(trouble, trouble, OK)

    async def check(client: Client) -> None:
        assert (await client.get(CONFIG_MAPS, A, ConfigMap)).metadata.name == "a"
        await client.apply(CONFIG_MAPS, A, manifest("a"), ConfigMap)
        assert await client.delete(CONFIG_MAPS, A)

    against(script, check)


@pytest.mark.parametrize("trouble", [503, 500, 504])
def test_a_create_is_sent_once(trouble: int) -> None:
    script = Script((trouble, {}), OK)

    async def check(client: Client) -> None:
        with pytest.raises(ApiError) as raised:
            await client.create(CONFIG_MAPS, "default", manifest("a"), ConfigMap)
        assert raised.value.code == trouble
        assert len(script.requests) == 1

    against(script, check)


def test_a_create_without_an_answer_is_not_repeated() -> None:
    script = Script((0, {}), OK)

    async def check(client: Client) -> None:
        with pytest.raises(Unreachable):
            await client.create(CONFIG_MAPS, "default", manifest("a"), ConfigMap)
        assert len(script.requests) == 1

    against(script, check)


def test_a_create_that_was_turned_away_at_the_door_is_sent_again() -> None:
    """429 says that nothing was done."""
    script = Script((429, {"Retry-After": "0"}), OK)

    async def check(client: Client) -> None:
        await client.create(CONFIG_MAPS, "default", manifest("a"), ConfigMap)
        assert len(script.requests) == 2

    against(script, check)


def test_more_patience_than_a_request_has_is_left_to_the_caller() -> None:
    script = Script((429, {"Retry-After": "40"}))

    async def check(client: Client) -> None:
        with pytest.raises(ApiError) as raised:
            await client.get(CONFIG_MAPS, A, ConfigMap)
        assert raised.value.retry_after == 40
        assert len(script.requests) == 1

    against(script, check)


def test_a_request_has_an_end() -> None:
    async def hang(_: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async def check(client: Client) -> None:
        with pytest.raises(Unreachable, match="Timeout"):
            await client.get(CONFIG_MAPS, A, ConfigMap)

    against(hang, check, request_seconds=0.3)


def test_warnings_are_told_once() -> None:
    script = Script((200, {"Warning": '299 - "spec.x is \\"old\\""'}))

    async def check(client: Client) -> None:
        told: list[str] = []
        client.on_warning = told.append
        for _ in range(3):
            await client.get(CONFIG_MAPS, A, ConfigMap)
        assert told == ['spec.x is "old"']

    against(script, check)


def test_a_flood_is_bounded_and_a_lease_overtakes_it() -> None:
    running, most = 0, 0
    release = asyncio.Event()

    async def count(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal running, most
        if request.query.get("fieldManager"):
            running += 1
            most = max(most, running)
            await release.wait()
            running -= 1
        return web.json_response(FOUND)

    async def check(client: Client) -> None:
        flood = [asyncio.create_task(client.create(CONFIG_MAPS, "x", {}, MetadataOnly)) for _ in range(20)]
        await eventually("the flood is at its bound", lambda: running == 4)
        await asyncio.wait_for(client.get_urgently(CONFIG_MAPS, A, MetadataOnly), 5)
        release.set()
        await asyncio.gather(*flood)
        assert most == 4

    against(count, check, limits=Limits(concurrency=4))


def test_requests_keep_to_their_rate() -> None:
    script = Script(OK)

    async def check(client: Client) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        await asyncio.gather(*(client.get(CONFIG_MAPS, A, ConfigMap) for _ in range(30)))
        assert clock() - began >= 0.19

    against(script, check, limits=Limits(rate=100.0, burst=10))


def test_who_does_not_lead_does_not_write() -> None:
    script = Script(OK)

    async def check(client: Client) -> None:
        client.transport.write_guard = lambda: False
        with pytest.raises(NotLeading):
            await client.create(CONFIG_MAPS, "default", manifest("a"), ConfigMap)
        await client.get(CONFIG_MAPS, A, ConfigMap)
        assert [request.method for request in script.requests] == ["GET"]

    against(script, check)


def test_a_refused_credential_is_replaced_once() -> None:
    """With a file that never changes: two requests, not a loop."""
    script = Script((401, {}))

    async def check(client: Client) -> None:
        with pytest.raises(ApiError) as raised:
            await client.get(CONFIG_MAPS, A, ConfigMap)
        assert raised.value.code == 401
        assert len(script.requests) == 2

    against(script, check)


def test_requests_are_counted_by_code() -> None:
    metrics = Metrics()
    script = Script((404, {}))

    async def check(client: Client) -> None:
        for _ in itertools.repeat(None, 3):
            assert await client.find(CONFIG_MAPS, A, ConfigMap) is None
        assert 'rest_client_requests_total{code="404",method="GET"' in metrics.text()

    against(script, check, metrics=metrics)
