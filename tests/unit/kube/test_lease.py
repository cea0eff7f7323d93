"""When a lease is free and when we lead: by our own monotonic clock, with a server that is a dictionary."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from kube_parts import eventually, misbehaving_server
from orchestra.kube.client import Client
from orchestra.kube.config import Access
from orchestra.kube.lease import Elector, LeadershipLost, LeaseOptions, LeaseSpec, Watched
from orchestra.kube.objects import Key

KEY = Key("system", "operator")
FAST = LeaseOptions(duration=30.0, renew=2.0, retry=0.1)
PATIENT = LeaseOptions(duration=300.0, renew=200.0, retry=0.1)


def held(by: str | None, renewed: str = "1", seconds: int = 15) -> LeaseSpec:
    return LeaseSpec(holder_identity=by, lease_duration_seconds=seconds, renew_time=renewed)


def test_a_lease_is_free_when_nobody_renewed_it_while_we_watched() -> None:
    watched = Watched(15.0)
    watched.see(held("other", "1999-01-01"), now=100.0)  # however old it says it is: its clock is not ours
    assert not watched.free(now=114.9)
    watched.see(held("other", "1999-01-01"), now=110.0)
    assert watched.free(now=115.0)
    watched.see(held("other", "1999-01-02"), now=115.0)
    assert not watched.free(now=129.0)
    assert watched.free(now=130.0)


def test_a_released_lease_is_free_at_once() -> None:
    watched = Watched(15.0)
    assert not watched.free(now=100.0)
    watched.see(held(""), now=100.0)
    assert watched.free(now=100.0)


def test_a_lease_without_a_duration_gets_ours() -> None:
    watched = Watched(15.0)
    watched.see(LeaseSpec(holder_identity="other"), now=0.0)
    assert not watched.free(now=14.0)
    assert watched.free(now=15.0)


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="retry < renew < duration"):
        LeaseOptions(duration=10, renew=10)


class Server:
    """Leases with resourceVersions, and faults."""

    def __init__(self) -> None:
        self.lease: dict[str, object] | None = None
        self.version = 0
        self.fault: Callable[[], Awaitable[web.Response | None]] | None = None
        self.answering: Callable[[], Awaitable[None]] | None = None
        self.requests = 0

    def holder(self) -> object:
        return self.lease and self.lease["spec"].get("holderIdentity")  # type: ignore[attr-defined]

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        if self.fault is not None and (answer := await self.fault()) is not None:
            return answer
        if request.method == "GET":
            missing = web.json_response({"code": 404, "reason": "NotFound"}, status=404)
            return missing if self.lease is None else web.json_response(self.lease)
        body = json.loads(await request.read())
        if request.method == "POST" and self.lease is not None:
            return web.json_response({"code": 409, "reason": "AlreadyExists"}, status=409)
        if request.method == "PUT" and body["metadata"].get("resourceVersion") != str(self.version):
            return web.json_response({"code": 409, "reason": "Conflict"}, status=409)
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.lease = body
        if self.answering is not None:
            await self.answering()
        return web.json_response(body)


def candidate(client: Client, name: str, options: LeaseOptions = PATIENT) -> Elector:
    return Elector(client, KEY, name, options=options)


def with_server(test: Callable[[Server, Client], Awaitable[None]]) -> None:
    async def run() -> None:
        server = Server()
        async with misbehaving_server(server) as url, Client(Access(server=url), manager="test") as client:
            await asyncio.wait_for(test(server, client), 60)

    asyncio.run(run())


async def for_ever() -> None:
    await asyncio.Event().wait()


def test_the_lease_is_released_only_after_the_work_has_ended() -> None:
    async def test(server: Server, client: Client) -> None:
        holders: list[object] = []

        async def work() -> None:
            try:
                await for_ever()
            finally:
                version = server.version
                await eventually("it renews while the work ends", lambda: server.version > version + 3)
                holders.append(server.holder())

        first = candidate(client, "first")
        task = asyncio.create_task(first.lead(work))
        await eventually("it leads", first.leading)
        version = server.version
        await eventually("it renews", lambda: server.version > version)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert holders == ["first"]
        assert server.holder() == ""
        second = candidate(client, "second")
        next_one = asyncio.create_task(second.lead(for_ever))
        await eventually("the next leads at once", second.leading, timeout=PATIENT.duration / 10)
        next_one.cancel()
        await asyncio.wait({next_one})

    with_server(test)


def test_a_renewal_that_is_cut_off_after_it_was_written_does_not_keep_the_lease() -> None:
    async def test(server: Server, client: Client) -> None:
        never = asyncio.Event()

        async def hang_once() -> None:
            server.answering = None
            await never.wait()

        leader = candidate(client, "leader")
        task = asyncio.create_task(leader.lead(for_ever))
        await eventually("it leads", leader.leading)
        version, server.answering = server.version, hang_once
        await eventually("it renewed, and waits for the answer", lambda: server.version > version)
        task.cancel()
        await asyncio.wait({task})
        assert server.holder() == ""
        never.set()

    with_server(test)


def test_a_server_that_answers_late_still_hears_that_the_lease_is_free() -> None:
    async def test(server: Server, client: Client) -> None:
        async def late() -> None:
            await asyncio.sleep(3 * PATIENT.retry)

        leader = candidate(client, "leader")
        task = asyncio.create_task(leader.lead(for_ever))
        await eventually("it leads", leader.leading)
        server.fault = late
        task.cancel()
        await asyncio.wait({task})
        assert server.holder() == ""

    with_server(test)


def test_a_leader_that_cannot_renew_stops_before_another_may_start() -> None:
    async def test(server: Server, client: Client) -> None:
        stopped = []

        async def work() -> None:
            try:
                await for_ever()
            finally:
                await asyncio.sleep(0)
                stopped.append(True)

        async def hang() -> None:
            await asyncio.sleep(60)

        leader = candidate(client, "leader", FAST)
        task = asyncio.create_task(leader.lead(work))
        await eventually("it leads", leader.leading)
        server.fault = hang
        began = asyncio.get_running_loop().time()
        with pytest.raises(LeadershipLost, match=r"could not be renewed within 2 s"):
            await task
        assert stopped == [True]
        assert asyncio.get_running_loop().time() - began < FAST.duration

    with_server(test)


def test_an_answer_that_was_lost_does_not_cost_the_lease() -> None:
    async def test(server: Server, client: Client) -> None:
        leader = candidate(client, "leader")
        task = asyncio.create_task(leader.lead(for_ever))
        await eventually("it leads", leader.leading)
        server.version += 1  # as if our renewal had been written, and the answer lost
        assert server.lease is not None
        server.lease["metadata"]["resourceVersion"] = str(server.version)  # type: ignore[index]
        version = server.version
        await eventually("it renews", lambda: server.version >= version + 2)
        assert leader.leading()
        task.cancel()
        await asyncio.wait({task})

    with_server(test)


def test_a_lease_that_another_took_is_lost_at_once() -> None:
    async def test(server: Server, client: Client) -> None:
        leader = candidate(client, "leader")
        task = asyncio.create_task(leader.lead(for_ever))
        await eventually("it leads", leader.leading)
        server.version += 1
        assert server.lease is not None
        server.lease["metadata"]["resourceVersion"] = str(server.version)  # type: ignore[index]
        server.lease["spec"]["holderIdentity"] = "thief"  # type: ignore[index]
        with pytest.raises(LeadershipLost, match="was taken by thief"):
            await task
        assert server.holder() == "thief"

    with_server(test)


def test_an_error_of_the_work_is_the_callers_and_the_lease_is_released() -> None:
    async def test(server: Server, client: Client) -> None:
        async def work() -> None:
            raise RuntimeError("a bug")

        with pytest.raises(RuntimeError, match="a bug"):
            await candidate(client, "leader").lead(work)
        assert server.holder() == ""

    with_server(test)
