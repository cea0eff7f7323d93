"""One process of an operator: its caches, its controllers, its lease, its health, from start to end.

manager = Manager(client, metrics=metrics, lease=Elector(client, Key("system", "my-operator"), identity))
jobs = manager.cache(JOBS, Job)
pods = manager.cache(PODS, Pod, labels="app=job")
controller = manager.controller("job", reconcile, workers=16)
controller.watch(jobs, lambda job: [job.metadata.key], worth=changed_by_others)
await manager.run(stop)
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from orchestra.kube.cache import Cache
from orchestra.kube.client import Client
from orchestra.kube.controller import Controller, Reconcile
from orchestra.kube.health import Health
from orchestra.kube.lease import Elector
from orchestra.kube.listing import Selection
from orchestra.kube.metrics import Metrics
from orchestra.kube.objects import Resource, T
from orchestra.kube.queue import K
from orchestra.kube.reflector import Reflector, ReflectorOptions

_UNHEARD_SECONDS = 180.0
_log = logging.getLogger(__name__)


class ManagerOptions(msgspec.Struct, frozen=True):
    """How a process behaves."""

    namespaces: tuple[str, ...] = ()
    """Only these (Roles suffice then); none means all of them."""
    drain_seconds: float = 15.0
    health: tuple[str, int] | None = None
    """Host and port of the health pages."""
    reflector: ReflectorOptions = ReflectorOptions()


class Manager:
    """Caches are kept warm by everybody; controllers run in the leader alone (or here, where there is no lease)."""

    def __init__(
        self,
        client: Client,
        *,
        metrics: Metrics | None = None,
        lease: Elector | None = None,
        options: ManagerOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self.metrics = metrics or Metrics()
        self.options = options or ManagerOptions()
        self.health = Health(self.metrics, clock=clock)
        self.on_health_port: Callable[[int], None] = lambda _port: None
        self._clock = clock
        self._lease = lease
        self._caches: dict[tuple[Resource, type, str, str], Cache[Any]] = {}
        self._reflectors: list[Reflector[Any]] = []
        self._controllers: list[Controller[Any]] = []
        self._at_end: list[Callable[[], Awaitable[None]]] = []
        self._background: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.health.add_check("caches", self._caches_problem)
        if lease is not None:
            client.transport.write_guard = lease.leading
            master = self.metrics.gauge("leader_election_master_status", "1 where this process leads.", "name")
            master.labels(lease.name).set(lambda: float(lease.leading()))

    def cache(
        self,
        resource: Resource,
        kind: type[T],
        *,
        labels: str = "",
        fields: str = "",
        optional: bool = False,
        also: str = "",
    ) -> Cache[T]:
        """The cache of a kind, decoded to a struct. Asking again for the same gives the same. Ask before `run`.

        Optional: where the server does not know the kind, or does not let us see it, the cache is empty until it does
        (`served` tells). `also` is one more namespace to look into where only some are. With `namespaces` the cache of
        a cluster-wide kind stays empty: a Role cannot let us see it.
        """
        wanted = (resource, kind, labels, fields)
        if wanted in self._caches:
            return self._caches[wanted]
        made: Cache[T] = Cache()
        self._caches[wanted] = made
        namespaces: Sequence[str | None] = (None,)
        if self.options.namespaces:
            some = dict.fromkeys((*self.options.namespaces, *([also] if also else [])))
            namespaces = tuple(some) if resource.namespaced else ()
        for namespace in namespaces:
            selection = Selection(namespace=namespace, labels=labels, fields=fields)
            self._reflectors.append(
                Reflector(
                    self.client,
                    resource,
                    kind,
                    made,
                    selection=selection,
                    optional=optional,
                    options=self.options.reflector,
                    metrics=self.metrics,
                    clock=self._clock,
                )
            )
        return made

    def served(self, resource: Resource) -> bool:
        """Whether what a cache of this kind holds is all there is: an empty one may just mean that we see nothing."""
        watching = [one for one in self._reflectors if one.resource == resource]
        return bool(watching) and all(one.served for one in watching)

    def controller(self, name: str, reconcile: Reconcile[K], *, workers: int = 8) -> Controller[K]:
        """A controller that runs while this process leads and its caches are whole."""
        made = Controller(name, reconcile, workers=workers, metrics=self.metrics)
        self._controllers.append(made)
        return made

    def background(
        self, run: Callable[[], Coroutine[Any, Any, None]], *, at_end: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Something that runs from start to end, leader or not (an event recorder). Its failure is the process's.

        `at_end` is awaited when a leader has ended its work in good order, and may still write.
        """
        self._background.append(run)
        if at_end is not None:
            self._at_end.append(at_end)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set: then what was begun is ended, the lease is released, and all is closed.

        LeadershipLost when the lease is lost: everything has been cancelled and awaited; exit with an error, and let
        the kubelet start a fresh process.
        """
        forever = [asyncio.create_task(one.run(), name=f"reflector-{one.resource}") for one in self._reflectors]
        forever += [asyncio.create_task(run()) for run in self._background]
        if self.options.health is not None:
            host, port = self.options.health
            serving = self.health.run(host, port, on_listening=lambda taken: self.on_health_port(taken))
            forever.append(asyncio.create_task(serving, name="health"))
        working = asyncio.create_task(self._lead(stop))
        try:
            await asyncio.wait({working, *forever}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel([working])
            await _cancel(forever)
        for task in (working, *forever):
            if not task.cancelled():
                task.result()

    async def _lead(self, stop: asyncio.Event) -> None:
        """Become the leader when the caches are whole, unless told to stop before."""
        await _unless(stop, self._wait_synced())
        if stop.is_set():
            return
        if self._lease is None:
            await self._work(stop)
            return
        leading = asyncio.create_task(self._lease.lead(lambda: self._work(stop)))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({leading, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not self._lease.leading():
                leading.cancel()  # a standby that is told to stop has nothing to end
            await asyncio.wait({leading})
        finally:
            await _cancel([leading, stopped])
        if not leading.cancelled():
            leading.result()

    async def _wait_synced(self) -> None:
        for reflector in self._reflectors:
            await reflector.wait_synced()

    async def _work(self, stop: asyncio.Event) -> None:
        running = [asyncio.create_task(one.run(), name=f"controller-{one.name}") for one in self._controllers]
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({*running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if stopped in done:
                drained = await asyncio.gather(*(one.drain(self.options.drain_seconds) for one in self._controllers))
                if not all(drained):
                    _log.warning("not all work ended within %g s; it is cancelled", self.options.drain_seconds)
                for end in self._at_end:
                    await end()
        finally:
            await _cancel([*running, stopped])
        for task in running:
            if not task.cancelled():
                task.result()

    def _caches_problem(self) -> str | None:
        unsynced = [str(one.resource) for one in self._reflectors if not one.synced]
        if unsynced:
            return f"not yet whole: {', '.join(unsynced)}"
        now = self._clock()
        silent = [str(one.resource) for one in self._reflectors if now - one.heard > _UNHEARD_SECONDS]
        return f"not a word for {_UNHEARD_SECONDS:g} s of {', '.join(silent)}" if silent else None


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _unless(stop: asyncio.Event, wait: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(wait), asyncio.create_task(stop.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancel(tasks)
