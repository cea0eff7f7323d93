"""Workers that bring the world in line, key by key.

`reconcile(key)` looks at the caches, decides, acts, and may ask to be called again later. It is never called twice at a
time for one key, it is called again after a failure, and it may be cancelled at any await: it must not mind.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic

import msgspec

from orchestra.kube.cache import Cache, Change
from orchestra.kube.errors import ApiError, KubeError, NotLeading
from orchestra.kube.metrics import SECONDS, Metrics
from orchestra.kube.objects import T
from orchestra.kube.queue import LOW, NORMAL, K, ShutDown, WorkQueue

_log = logging.getLogger(__name__)


class Result(msgspec.Struct, frozen=True):
    """How a reconcile ended."""

    requeue_after: float | None = None
    """Call again in so many seconds, whether or not anything changes."""


class Hopeless(Exception):
    """For reconcile to raise: trying again makes no sense until something changes."""


Reconcile = Callable[[K], Awaitable[Result | None]]


def changed_by_others(old: T, new: T) -> bool:
    """Whether a change is more than one of the status: our own status writes are no news to us."""
    before, after = old.metadata, new.metadata
    return (
        before.generation != after.generation
        or before.deletion_timestamp != after.deletion_timestamp
        or before.labels != after.labels
        or before.annotations != after.annotations
        or before.finalizers != after.finalizers
    )


class Controller(Generic[K]):
    """One queue and its workers."""

    def __init__(self, name: str, reconcile: Reconcile[K], *, workers: int = 8, metrics: Metrics | None = None) -> None:
        self.name = name
        metrics = metrics or Metrics()
        self.queue: WorkQueue[K] = WorkQueue(name, metrics=metrics)
        self._reconcile = reconcile
        self._workers = workers
        self._active = 0
        self._measure(metrics)

    def watch(
        self,
        cache: Cache[T],
        keys_of: Callable[[T], Iterable[K]],
        *,
        worth: Callable[[T, T], bool] = lambda _old, _new: True,
    ) -> None:
        """Work on these keys when an object is born, dies, or changes in a way that is worth it.

        Both the old and the new state name keys: when a child changes hands, both owners hear of it.
        """

        def hear(change: Change[T]) -> None:
            if change.old is not None and change.new is not None and not worth(change.old, change.new):
                return
            for item in (change.old, change.new):
                if item is not None:
                    for key in keys_of(item):
                        self.queue.add(key, priority=LOW if change.initial else NORMAL)

        cache.listen(hear)

    async def run(self) -> None:
        """Work until `drain` (what was begun is ended) or until cancelled (it is cancelled, and awaited)."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name}-{number}")

    async def drain(self, patience: float) -> bool:
        """Begin nothing new and wait for what was begun; False when that took too long (then cancel `run`)."""
        self.queue.shut_down()
        try:
            async with asyncio.timeout(patience):
                await self.queue.drained()
        except TimeoutError:
            return False
        return True

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except ShutDown:
                return
            self._active += 1
            try:
                await self._one(key)
            finally:
                self._active -= 1
                self.queue.done(key)
            # A reconcile that found nothing to do never waited: without this, 5,000 of them would be one long
            # turn, and leases, watches and probes would wait for its end.
            await asyncio.sleep(0)

    async def _one(self, key: K) -> None:
        began = time.monotonic()
        result: Result | None = None
        try:
            result = await self._reconcile(key)
            outcome = "success"
        except NotLeading as error:
            _log.info("%s %s: not written, for we lead no more: %s", self.name, key, error)
            outcome = "error"
        except Hopeless as error:
            _log.warning("%s %s: %s", self.name, key, error)
            self._terminal.inc()
            self.queue.forget(key)
            outcome = "error"
        except Exception as error:  # noqa: BLE001 - whatever it is, this key is tried again and the others go on
            self._failed(key, error)
            outcome = "error"
        else:
            self.queue.forget(key)
            if result is not None and result.requeue_after is not None:
                self.queue.add_after(key, result.requeue_after)
                outcome = "requeue_after"
        self._totals.labels(self.name, outcome).inc()
        self._time.observe(time.monotonic() - began)

    def _failed(self, key: K, error: Exception) -> None:
        self._errors.inc()
        wait = (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
        delay = self.queue.add_failed(key, at_least=wait)
        if isinstance(error, ApiError) and error.conflict:
            _log.info("%s %s: somebody was faster; again in %.3f s: %s", self.name, key, delay, error)
        elif isinstance(error, KubeError):
            _log.warning("%s %s: again in %.3f s: %s", self.name, key, delay, error)
        else:
            _log.error("%s %s: again in %.3f s", self.name, key, delay, exc_info=error)

    def _measure(self, metrics: Metrics) -> None:
        """Under the names of controller-runtime, so that its dashboards work."""
        prefix, label = "controller_runtime", "controller"
        self._totals = metrics.counter(f"{prefix}_reconcile_total", "Reconciles, by result.", label, "result")
        errors = metrics.counter(f"{prefix}_reconcile_errors_total", "Reconciles that failed.", label)
        terminal = metrics.counter(f"{prefix}_terminal_reconcile_errors_total", "Failures not tried again.", label)
        times = metrics.histogram(f"{prefix}_reconcile_time_seconds", "Length of reconciles.", label, bounds=SECONDS)
        most = metrics.gauge(f"{prefix}_max_concurrent_reconciles", "Workers.", label)
        active = metrics.gauge(f"{prefix}_active_workers", "Workers that work now.", label)
        self._errors, self._terminal = errors.labels(self.name), terminal.labels(self.name)
        self._time = times.labels(self.name)
        most.labels(self.name).set(self._workers)
        active.labels(self.name).set(lambda: self._active)
