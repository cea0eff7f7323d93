"""Workers: one at a time for a key, again after failures, ended or cancelled as a whole."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kube_parts import ConfigMap, a_config_map, eventually
from orchestra.kube.cache import Cache
from orchestra.kube.controller import Controller, Hopeless, Result, changed_by_others
from orchestra.kube.errors import ApiError, Refusal
from orchestra.kube.metrics import Metrics
from orchestra.kube.objects import Key, by_controller


def running(
    reconcile: Callable[[str], Awaitable[Result | None]],
    check: Callable[[Controller[str]], Awaitable[None]],
    metrics: Metrics | None = None,
) -> None:
    async def run() -> None:
        controller = Controller("test", reconcile, workers=4, metrics=metrics)
        task = asyncio.create_task(controller.run())
        try:
            await asyncio.wait_for(check(controller), 30)
        finally:
            task.cancel()
            await asyncio.wait({task})

    asyncio.run(run())


def test_a_key_is_never_in_two_hands_and_each_wish_is_served() -> None:
    inside: set[str] = set()
    served: list[str] = []

    async def reconcile(key: str) -> None:
        assert key not in inside
        inside.add(key)
        await asyncio.sleep(0.001)
        inside.remove(key)
        served.append(key)

    async def check(controller: Controller[str]) -> None:
        for _ in range(50):
            for key in "abcdefgh":
                controller.queue.add(key)
            await asyncio.sleep(0.001)
        served.clear()
        for key in "abcdefgh":
            controller.queue.add(key)
        await eventually("all were served after the last wish", lambda: set(served) == set("abcdefgh"))

    running(reconcile, check)


def test_a_failure_is_tried_again_and_a_success_forgets_it() -> None:
    calls = 0

    async def reconcile(_: str) -> None:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise RuntimeError("not yet")

    metrics = Metrics()

    async def check(controller: Controller[str]) -> None:
        controller.queue.add("a")
        await eventually("it worked in the end", lambda: calls == 4 and controller.queue.failures("a") == 0)
        text = metrics.text()
        assert 'controller_runtime_reconcile_total{controller="test",result="error"} 3\n' in text
        assert 'controller_runtime_reconcile_total{controller="test",result="success"} 1\n' in text
        assert 'controller_runtime_reconcile_errors_total{controller="test"} 3\n' in text
        assert 'controller_runtime_max_concurrent_reconciles{controller="test"} 4\n' in text

    running(reconcile, check, metrics)


def test_the_hopeless_is_not_tried_again() -> None:
    calls = 0

    async def reconcile(_: str) -> None:
        nonlocal calls
        calls += 1
        raise Hopeless("the template is wrong")

    async def check(controller: Controller[str]) -> None:
        controller.queue.add("a")
        await eventually("called", lambda: calls == 1)
        controller.queue.add("b")
        await eventually("called for the other", lambda: calls == 2)
        assert not controller.queue._timers

    running(reconcile, check)


def test_a_server_that_wants_patience_gets_it() -> None:
    async def reconcile(_: str) -> None:
        raise ApiError("GET /", Refusal(429, retry_after=50.0))

    async def check(controller: Controller[str]) -> None:
        controller.queue.add("a")
        timers = await eventually("it waits", lambda: list(controller.queue._timers.values()))
        assert timers[0][0] - asyncio.get_running_loop().time() > 40

    running(reconcile, check)


def test_a_reconcile_may_ask_to_be_called_again() -> None:
    calls = 0

    async def reconcile(_: str) -> Result:
        nonlocal calls
        calls += 1
        return Result(requeue_after=0.01)

    async def check(controller: Controller[str]) -> None:
        controller.queue.add("a")
        await eventually("called again and again", lambda: calls >= 3)

    running(reconcile, check)


def test_work_that_never_waits_leaves_turns_to_others() -> None:
    async def reconcile(_: str) -> None:
        return None

    async def check(controller: Controller[str]) -> None:
        for number in range(2000):
            controller.queue.add(str(number))
        turns = 0
        while len(controller.queue):
            await asyncio.sleep(0)
            turns += 1
        assert turns > 100

    running(reconcile, check)


def test_a_drain_ends_what_was_begun_and_begins_nothing() -> None:
    begun, ended = asyncio.Event(), []

    async def reconcile(key: str) -> None:
        begun.set()
        await asyncio.sleep(0.05)
        ended.append(key)

    async def run() -> None:
        controller = Controller("test", reconcile, workers=1)
        task = asyncio.create_task(controller.run())
        controller.queue.add("a")
        controller.queue.add("b")
        await begun.wait()
        assert await controller.drain(30)
        await asyncio.wait_for(task, 5)
        assert ended == ["a"]

    asyncio.run(run())


def test_a_cancelled_controller_has_no_worker_left() -> None:
    state = []

    async def reconcile(_: str) -> None:
        try:
            state.append("begun")
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.02)
            state.append("cleaned up")

    async def run() -> None:
        controller = Controller("test", reconcile)
        task = asyncio.create_task(controller.run())
        controller.queue.add("a")
        await eventually("begun", lambda: state)
        assert not await controller.drain(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert state == ["begun", "cleaned up"]

    asyncio.run(run())


def test_owners_hear_of_their_children_old_objects_later_than_news() -> None:
    async def run() -> None:
        cache: Cache[ConfigMap] = Cache()
        cache.put(a_config_map("there", owner="old"))
        controller: Controller[str] = Controller("test", lambda _: asyncio.sleep(0))
        controller.watch(cache, lambda item: by_controller(item))
        cache.put(a_config_map("new", owner="fresh"))
        assert [await controller.queue.get() for _ in range(2)] == ["fresh", "old"]
        for key in ("fresh", "old"):
            controller.queue.done(key)
        cache.put(a_config_map("there", version=2, owner="fresh"))
        assert {await controller.queue.get() for _ in range(2)} == {"old", "fresh"}

    asyncio.run(run())


def test_our_own_status_writes_are_no_news() -> None:
    async def run() -> None:
        cache: Cache[ConfigMap] = Cache()
        controller: Controller[Key] = Controller("test", lambda _: asyncio.sleep(0))
        controller.watch(cache, lambda item: [item.metadata.key], worth=changed_by_others)
        cache.put(a_config_map("a"))
        controller.queue.done(await controller.queue.get())
        cache.put(a_config_map("a", version=2))
        assert len(controller.queue) == 0
        cache.remove(Key("default", "a"))
        assert len(controller.queue) == 1

    asyncio.run(run())
