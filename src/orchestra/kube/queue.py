"""client-go's work queue: a key is worked on by one worker at a time, and no request for work on it is ever lost.

A key that is added while it is worked on is handed out again afterwards, once, however often it was added. What comes
out first is decided by priority, then by age.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from orchestra.kube.backoff import Backoff
from orchestra.kube.metrics import WORKQUEUE_SECONDS, Metrics

K = TypeVar("K", bound=Hashable)

NORMAL = 0
LOW = -100
"""For keys of the initial list: a fresh submit is not to wait behind 5,000 old ones."""

RETRY = Backoff(first=0.005, longest=60.0)


class ShutDown(Exception):
    """The queue gives out no more keys."""


class Timer(Protocol):
    """What a timer can do."""

    def cancel(self) -> None:
        """Forget it."""
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]


def _loop_call_later(delay: float, action: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(delay, action)


class WorkQueue(Generic[K]):
    """For one event loop; no call blocks but `get`."""

    def __init__(
        self,
        name: str,
        *,
        backoff: Backoff = RETRY,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        call_later: CallLater = _loop_call_later,
    ) -> None:
        self.name = name
        self._backoff = backoff
        self._clock = clock
        self._call_later = call_later
        self._dirty: dict[K, tuple[int, float]] = {}  # wants work: its priority, and since when
        self._processing: dict[K, float] = {}  # is worked on, since when
        self._heap: list[tuple[int, int, K]] = []  # may hold outdated entries: `_waiting` says which are true
        self._waiting: dict[K, int] = {}
        self._order = itertools.count()
        self._timers: dict[K, tuple[float, Timer, int]] = {}
        self._failures: dict[K, int] = {}
        self._idle: list[asyncio.Future[None]] = []
        self._drained: asyncio.Event = asyncio.Event()
        self._shut_down = False
        self._measure(metrics or Metrics())

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K, *, priority: int = NORMAL) -> None:
        """Ask for work on a key. Asked for again at a higher priority, it moves forward."""
        if self._shut_down:
            return
        known = self._dirty.get(key)
        if known is not None and known[0] >= priority:
            return
        if known is None:
            self._adds.inc()
        self._dirty[key] = (priority, self._clock() if known is None else known[1])
        if key not in self._processing:
            self._push(key, priority)

    def add_after(self, key: K, delay: float, *, priority: int = NORMAL) -> None:
        """Ask for work in `delay` seconds. A key has one timer: the earliest wish stands."""
        if self._shut_down:
            return
        if delay <= 0:
            self.add(key, priority=priority)
            return
        due = self._clock() + delay
        known = self._timers.get(key)
        if known is not None:
            if known[0] <= due:
                return
            known[1].cancel()
        self._timers[key] = (due, self._call_later(delay, lambda: self._due(key)), priority)

    def add_failed(self, key: K, *, at_least: float = 0.0) -> float:
        """Ask for work after a failure: later with each in a row. Returns the delay."""
        self._failures[key] = self._failures.get(key, 0) + 1
        self._retries.inc()
        delay = max(at_least, self._backoff.delay(self._failures[key]))
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """It succeeded: the next failure is the first one again."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """How often it failed in a row."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key; nobody else gets it until `done`. ShutDown when there will be none."""
        while True:
            if self._shut_down:
                raise ShutDown
            key = self._pop()
            if key is not None:
                return key
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._idle:
                    self._idle.remove(waiter)
                elif self._waiting:
                    self._wake()  # it was woken and cancelled at once: another one does the work
                raise

    def done(self, key: K) -> None:
        """The work on it ended, well or not. If it was asked for meanwhile, it is due again."""
        began = self._processing.pop(key)
        self._work_time.observe(self._clock() - began)
        again = self._dirty.get(key)
        if again is not None and not self._shut_down:
            self._push(key, again[0])
        if self._shut_down and not self._processing:
            self._drained.set()

    def shut_down(self) -> None:
        """Give out nothing more. Work that was begun may end."""
        self._shut_down = True
        for _, timer, _ in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        self._idle.clear()
        if not self._processing:
            self._drained.set()

    async def drained(self) -> None:
        """Until it is shut down and all work that was begun has ended."""
        await self._drained.wait()

    def _due(self, key: K) -> None:
        _, _, priority = self._timers.pop(key)
        self.add(key, priority=priority)

    def _push(self, key: K, priority: int) -> None:
        order = next(self._order)
        self._waiting[key] = order
        heapq.heappush(self._heap, (-priority, order, key))
        self._wake()

    def _pop(self) -> K | None:
        while self._heap:
            _, order, key = heapq.heappop(self._heap)
            if self._waiting.get(key) == order:
                del self._waiting[key]
                now = self._clock()
                _, since = self._dirty.pop(key)
                self._queue_time.observe(now - since)
                self._processing[key] = now
                return key
        return None

    def _wake(self) -> None:
        while self._idle:
            waiter = self._idle.pop(0)
            if not waiter.done():
                waiter.set_result(None)
                return

    def _measure(self, metrics: Metrics) -> None:
        """Under the names of client-go, with controller-runtime's labels."""
        labels, values = ("name", "controller"), (self.name, self.name)
        self._adds = metrics.counter("workqueue_adds_total", "Adds handled.", *labels).labels(*values)
        self._retries = metrics.counter("workqueue_retries_total", "Retries handled.", *labels).labels(*values)
        queue_time = metrics.histogram(
            "workqueue_queue_duration_seconds", "How long a key waits.", *labels, bounds=WORKQUEUE_SECONDS
        )
        work_time = metrics.histogram(
            "workqueue_work_duration_seconds", "How long a key is worked on.", *labels, bounds=WORKQUEUE_SECONDS
        )
        self._queue_time, self._work_time = queue_time.labels(*values), work_time.labels(*values)
        metrics.gauge("workqueue_depth", "Keys that wait.", *labels).labels(*values).set(lambda: len(self._waiting))
        unfinished = metrics.gauge("workqueue_unfinished_work_seconds", "Seconds of work not yet done.", *labels)
        unfinished.labels(*values).set(lambda: sum(self._clock() - since for since in self._processing.values()))
        longest = metrics.gauge("workqueue_longest_running_processor_seconds", "The longest work now.", *labels)
        longest.labels(*values).set(
            lambda: max((self._clock() - since for since in self._processing.values()), default=0.0)
        )
