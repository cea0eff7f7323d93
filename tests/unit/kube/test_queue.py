"""The work queue keeps client-go's promises; time is the test's."""

import asyncio
from collections.abc import Callable

import pytest

from orchestra.kube.backoff import Backoff
from orchestra.kube.metrics import Metrics
from orchestra.kube.queue import LOW, ShutDown, WorkQueue


class FakeTimer:
    def __init__(self, due: float, action: Callable[[], None]) -> None:
        self.due, self.action, self.cancelled = due, action, False

    def cancel(self) -> None:
        self.cancelled = True


class FakeTime:
    """A clock that moves when told, and the timers set on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[FakeTimer] = []

    def call_later(self, delay: float, action: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self.now + delay, action)
        self.timers.append(timer)
        return timer

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer.due <= self.now]
        self.timers = [timer for timer in self.timers if timer.due > self.now]
        for timer in due:
            if not timer.cancelled:
                timer.action()

    @property
    def pending(self) -> int:
        return sum(not timer.cancelled for timer in self.timers)


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def queue(time: FakeTime) -> WorkQueue[str]:
    backoff = Backoff(first=0.005, longest=60.0, jitter=0.0)
    return WorkQueue("q", backoff=backoff, clock=lambda: time.now, call_later=time.call_later)


def taken(queue: WorkQueue[str]) -> str:
    """What `get` returns, which must be there."""

    async def get() -> str:
        return await asyncio.wait_for(queue.get(), 1)

    return asyncio.run(get())


def test_a_key_added_often_is_handed_out_once(queue: WorkQueue[str]) -> None:
    for _ in range(3):
        queue.add("a")
    assert len(queue) == 1
    assert taken(queue) == "a"
    assert len(queue) == 0


def test_a_key_in_work_is_not_given_to_a_second_worker_and_not_lost(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert taken(queue) == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert taken(queue) == "a"
    queue.done("a")
    assert len(queue) == 0


def test_first_come_first_served_within_a_priority(queue: WorkQueue[str]) -> None:
    queue.add("old", priority=LOW)
    queue.add("a")
    queue.add("older", priority=LOW)
    queue.add("b")
    assert [taken(queue) for _ in range(4)] == ["a", "b", "old", "older"]


def test_news_about_a_key_of_the_initial_list_moves_it_forward(queue: WorkQueue[str]) -> None:
    for name in ("a", "b", "c"):
        queue.add(name, priority=LOW)
    queue.add("c")
    assert [taken(queue) for _ in range(3)] == ["c", "a", "b"]
    assert len(queue) == 0


def test_the_priority_of_news_during_work_holds_afterwards(queue: WorkQueue[str]) -> None:
    queue.add("a", priority=LOW)
    taken(queue)
    queue.add("b", priority=LOW)
    queue.add("a")
    queue.done("a")
    assert [taken(queue) for _ in range(2)] == ["a", "b"]


def test_a_key_has_one_timer_and_the_earliest_wish_stands(queue: WorkQueue[str], time: FakeTime) -> None:
    queue.add_after("a", 10)
    queue.add_after("a", 20)
    queue.add_after("a", 5)
    assert time.pending == 1
    time.pass_by(5)
    assert taken(queue) == "a"
    queue.done("a")
    time.pass_by(60)
    assert len(queue) == 0


def test_failures_wait_ever_longer_until_forgotten(queue: WorkQueue[str], time: FakeTime) -> None:
    delays = []
    for _ in range(20):
        delays.append(queue.add_failed("a"))
        time.pass_by(delays[-1])
        assert taken(queue) == "a"
        queue.done("a")
    assert delays[:4] == [0.005, 0.01, 0.02, 0.04]
    assert delays[-1] == 60.0
    assert queue.failures("a") == 20
    queue.forget("a")
    assert queue.add_failed("a") == 0.005


def test_the_server_may_ask_for_more_patience(queue: WorkQueue[str]) -> None:
    assert queue.add_failed("a", at_least=7.0) == 7.0


def test_shut_down_wakes_the_idle_and_waits_for_the_busy() -> None:
    async def run() -> None:
        queue: WorkQueue[str] = WorkQueue("q")
        queue.add("a")
        await queue.get()
        queue.add_after("later", 0.01)
        idle = asyncio.create_task(queue.get())
        drained = asyncio.create_task(queue.drained())
        await asyncio.sleep(0)
        queue.shut_down()
        with pytest.raises(ShutDown):
            await idle
        assert not drained.done()
        queue.add("b")
        queue.done("a")
        await drained
        assert len(queue) == 0

    asyncio.run(run())


def test_work_is_not_lost_when_the_woken_worker_is_cancelled() -> None:
    async def run() -> None:
        queue: WorkQueue[str] = WorkQueue("q")
        first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add("a")
        first.cancel()
        assert await asyncio.wait_for(second, 5) == "a"

    asyncio.run(run())


def test_the_queue_is_measured_under_the_known_names(time: FakeTime) -> None:
    metrics = Metrics()
    queue: WorkQueue[str] = WorkQueue("jobs", metrics=metrics, clock=lambda: time.now, call_later=time.call_later)
    queue.add("a")
    queue.add("b")
    taken(queue)
    time.pass_by(3)
    text = metrics.text()
    assert 'workqueue_depth{name="jobs",controller="jobs"} 1\n' in text
    assert 'workqueue_adds_total{name="jobs",controller="jobs"} 2\n' in text
    assert 'workqueue_unfinished_work_seconds{name="jobs",controller="jobs"} 3\n' in text
    assert 'workqueue_queue_duration_seconds_count{name="jobs",controller="jobs"} 1\n' in text
