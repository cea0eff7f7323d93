"""Crash safety: whatever await of a reconcile is its last, the next one converges; nothing twice, nothing half."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kube_parts import connect, eventually
from operator_desk import Desk
from operator_on_plane import install
from orchestra.kube.cache import Change
from orchestra.kube.client import Client
from orchestra.kube.errors import KubeError
from orchestra.kube.events import EventRecorder
from orchestra.kube.manager import Manager, ManagerOptions
from orchestra.kube.objects import PODS, Key
from orchestra.operator.jobs import JobController
from orchestra.operator.kinds import JOBS, QUEUES, JobObject, PodObject, QueueObject
from orchestra.operator.progress import ProgressBoard
from orchestra.operator.queueing.lines import Lines
from orchestra.operator.queueing.lookup import QueueLookup
from testbed.control_plane import ControlPlane

Job = str


class Bench:
    """A controller's parts in this process, so that its reconciles can be cancelled where we like."""

    def __init__(self, client: Client, manager: Manager) -> None:
        self.client = client
        self.jobs = manager.cache(JOBS, JobObject)
        self.queues = manager.cache(QUEUES, QueueObject)
        self.pods = manager.cache(PODS, PodObject, labels="torchrun-job-name")
        self._real = client.transport.request
        self.requests = 0

    def knows(self, key: Key) -> bool:
        """Whether the cache has the job."""
        return key in self.jobs

    def controller(self) -> JobController:
        """A new one, which remembers nothing: as after a crash."""
        lookup = QueueLookup(self.jobs, self.queues, "orchestra-queues")
        lines = Lines(lookup, self.jobs, self.pods, wake=lambda _key: None)
        events = EventRecorder(self.client, controller="test", instance="test")
        board = ProgressBoard(dict, lambda _uid: None)
        return JobController(self.client, self.jobs, lookup, lines, self.pods, events, board)

    async def crash(self, key: Key, at: int, *, answered: bool) -> bool:
        """A reconcile that is cancelled at its so-manyeth request, before it is sent or once it was carried out.

        False when there were fewer requests.
        """
        self.requests = 0
        task: asyncio.Task[Any] = asyncio.create_task(self.controller().reconcile(key))

        async def request(*words: Any, **more: Any) -> Any:
            self.requests += 1
            if self.requests != at:
                return await self._real(*words, **more)
            if answered:
                await self._real(*words, **more)
            task.cancel()
            return await asyncio.sleep(3600)

        self.client.transport.request = request  # type: ignore[method-assign]
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        finally:
            self.client.transport.request = self._real  # type: ignore[method-assign]
        return self.requests >= at

    async def meanwhile(self, key: Key, at: int, act: Callable[[], object]) -> None:
        """A reconcile during which something happens, just before its so-manyeth request."""
        self.requests = 0

        async def request(*words: Any, **more: Any) -> Any:
            self.requests += 1
            if self.requests == at:
                act()
            return await self._real(*words, **more)

        self.client.transport.request = request  # type: ignore[method-assign]
        try:
            with contextlib.suppress(KubeError):
                await self.controller().reconcile(key)
        finally:
            self.client.transport.request = self._real  # type: ignore[method-assign]

    async def writes(self, key: Key) -> list[str]:
        """What a new controller writes about a job, looking three times: each event may come more than once."""
        written: list[str] = []

        async def request(method: str, target: str, **more: Any) -> Any:
            if method != "GET":
                written.append(f"{method} {target}")
            return await self._real(method, target, **more)  # type: ignore[arg-type]

        self.client.transport.request = request  # type: ignore[method-assign]
        controller = self.controller()
        try:
            for _ in range(3):
                await controller.reconcile(key)
        finally:
            self.client.transport.request = self._real  # type: ignore[method-assign]
        return written

    async def settle(self, key: Key, until: Callable[[], object]) -> None:
        """Reconcile as an operator would, until it is so."""
        controller = self.controller()
        for _ in range(600):
            with contextlib.suppress(KubeError):
                await controller.reconcile(key)
            if until():
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{key} did not settle")


@contextlib.asynccontextmanager
async def bench(kubeconfig: Path, namespace: str) -> AsyncIterator[Bench]:
    async with connect(kubeconfig) as client:
        manager = Manager(client, options=ManagerOptions(namespaces=(namespace,)))
        made = Bench(client, manager)
        stop = asyncio.Event()
        running = asyncio.create_task(manager.run(stop))
        await manager._wait_synced()
        yield made
        stop.set()
        await running


def crashing(plane: ControlPlane, namespace: str, test: Callable[[Bench, Desk], Awaitable[None]]) -> None:
    install(plane)
    desk = Desk(plane, namespace)
    desk.queue(storage={"checkpoints": {"sizePerGPU": "1Mi"}})

    async def run() -> None:
        async with bench(plane.admin_kubeconfig, namespace) as made:
            await test(made, desk)

    asyncio.run(run())
    desk.forget()
    desk.api.patch(desk.path("torchrunqueue", "queue"), {"metadata": {"finalizers": None}})


def condition(desk: Desk, name: Job, kind: str) -> str | None:
    found = [c["status"] for c in desk.status(name).get("conditions", []) if c["type"] == kind]
    return found[0] if found else None


def _rests(desk: Desk, name: Job) -> bool:
    return bool(desk.status(name).get("phase") == "Suspended")


async def _created(bench: Bench, desk: Desk, name: Job) -> None:
    wanted = {f"{name}-0", f"{name}-1", f"{name}-rdzv"}
    key = Key(desk.namespace, name)

    def mine() -> set[str]:
        pods = desk.items("pods", labelSelector=f"torchrun-job-name={name}")
        return {pod["metadata"]["name"] for pod in pods}

    def whole() -> bool:
        found = mine()
        assert found <= wanted, "nothing twice"
        return found == wanted and condition(desk, name, "Created") == "True"

    await bench.settle(key, whole)
    assert desk.status(name)["attempt"] == 1
    services = [one for one in desk.names("services") if one == name]
    claims = [one for one in desk.names("persistentvolumeclaims") if one == f"{name}-checkpoints"]
    assert (len(services), len(claims)) == (1, 1)


@pytest.mark.parametrize("answered", [False, True])
def test_a_start_that_is_cut_off_anywhere_is_completed_once(
    control_plane: ControlPlane, namespace: str, answered: bool
) -> None:
    async def run(bench: Bench, desk: Desk) -> None:
        for at in range(1, 50):
            name = f"job-{at}"
            desk.job(name)
            key = Key(desk.namespace, name)
            await eventually("the job is seen", functools.partial(bench.knows, key))
            reached = await bench.crash(key, at, answered=answered)
            await _created(bench, desk, name)
            desk.api.delete(desk.path("torchrunjob", name))
            if not reached:
                assert at > 6, "it had some requests to make"
                return
        raise AssertionError("it never ended")

    crashing(control_plane, namespace, run)


@pytest.mark.parametrize("answered", [False, True])
def test_a_suspension_that_is_cut_off_anywhere_ends_all_pods(
    control_plane: ControlPlane, namespace: str, answered: bool
) -> None:
    async def run(bench: Bench, desk: Desk) -> None:
        for at in range(1, 50):
            name = f"job-{at}"
            desk.job(name)
            key = Key(desk.namespace, name)
            await eventually("the job is seen", functools.partial(bench.knows, key))
            await _created(bench, desk, name)
            desk.api.patch(desk.path("torchrunjob", name), {"spec": {"suspend": True}})

            def asked(key: Key = key) -> bool:
                found = bench.jobs.get(key)
                return found is not None and found.read_spec().suspend

            await eventually("the wish is seen", asked)
            reached = await bench.crash(key, at, answered=answered)
            await bench.settle(key, functools.partial(_rests, desk, name))
            assert desk.items("pods", labelSelector=f"torchrun-job-name={name}") == []
            assert desk.status(name)["attempt"] == 1
            desk.api.delete(desk.path("torchrunjob", name))
            if not reached:
                assert at > 3
                return
        raise AssertionError("it never ended")

    crashing(control_plane, namespace, run)


def test_a_job_made_again_under_its_name_in_the_middle_gets_nothing_of_the_first(
    control_plane: ControlPlane, namespace: str
) -> None:
    async def run(bench: Bench, desk: Desk) -> None:
        for at in (2, 6, 8):
            name = f"job-{at}"
            first = desk.job(name)["metadata"]["uid"]
            key = Key(desk.namespace, name)
            await eventually("the job is seen", functools.partial(bench.knows, key))

            def again(name: str = name) -> None:
                desk.api.delete(desk.path("torchrunjob", name), propagation="Background")
                desk.job(name)

            await bench.meanwhile(key, at, again)
            second = desk.api.get(desk.path("torchrunjob", name))["metadata"]["uid"]
            assert second != first
            await _created(bench, desk, name)  # once the garbage collector has taken what the first one left
            owners = {
                pod["metadata"]["ownerReferences"][0]["uid"]
                for pod in desk.items("pods", labelSelector=f"torchrun-job-name={name}")
            }
            assert owners == {second}
            desk.api.delete(desk.path("torchrunjob", name))

    crashing(control_plane, namespace, run)


def test_a_job_that_is_as_it_should_be_is_left_alone_however_often_it_is_looked_at(
    control_plane: ControlPlane, namespace: str
) -> None:
    async def run(bench: Bench, desk: Desk) -> None:
        desk.job()
        key = Key(desk.namespace, "job")
        await eventually("the job is seen", functools.partial(bench.knows, key))
        await _created(bench, desk, "job")

        for _ in range(100):  # the scheduler may still have a word to say about its pods
            written = await bench.writes(key)
            if not written:
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"it is never left alone: {written}")

    crashing(control_plane, namespace, run)


@pytest.mark.parametrize("remembers", [True, False], ids=["own-writes", "taken-over"])
def test_an_old_event_replayed_undoes_and_doubles_nothing(
    control_plane: ControlPlane, namespace: str, remembers: bool
) -> None:
    """A cache is behind what was written, by this operator or by the one whose lease it took: each state that the job
    ever had is shown again, with the pods that are there now.
    """

    async def run(bench: Bench, desk: Desk) -> None:
        name, key = "job", Key(desk.namespace, "job")
        desk.job(name)
        await eventually("the job is seen", functools.partial(bench.knows, key))
        seen: dict[str, JobObject] = {}

        def remember(change: Change[JobObject]) -> None:
            if change.new is not None and change.key == key:
                seen.setdefault(change.new.metadata.resource_version, change.new)

        bench.jobs.listen(remember)
        controller = bench.controller()
        first = bench.jobs.get(key)
        assert first is not None
        seen[first.metadata.resource_version] = first

        def attempt(number: int) -> bool:
            created = condition(desk, name, "Created") == "True"
            return created and desk.status(name).get("attempt") == number

        async def settled(number: int) -> None:
            for _ in range(600):
                await controller.reconcile(key)
                current = desk.api.get(desk.path("torchrunjob", name))["metadata"]["resourceVersion"]
                cached = bench.jobs.get(key)
                if attempt(number) and cached is not None and cached.metadata.resource_version == current:
                    return
                await asyncio.sleep(0.1)
            raise TimeoutError(f"attempt {number} did not come")

        await settled(1)
        desk.api.delete(desk.core("pods", f"{name}-1"), grace_seconds=0)
        await settled(2)
        pods, newest = desk.pod_uids(), bench.jobs.get(key)
        assert newest is not None
        assert {pod.rsplit("-", 1)[1] for pod in pods} == {"r2"}
        for old in list(seen.values()):
            if old.metadata.resource_version == newest.metadata.resource_version:
                continue
            bench.jobs.put(old)
            with contextlib.suppress(KubeError):  # it is told to look again
                await (controller if remembers else bench.controller()).reconcile(key)
            bench.jobs.put(newest)
            assert desk.pod_uids() == pods, old.read_status()
            assert desk.status(name)["attempt"] == 2, old.read_status()
        assert len(seen) > 3
        await bench.settle(key, functools.partial(attempt, 2))
        assert desk.pod_uids() == pods

    crashing(control_plane, namespace, run)
