"""The kubernetes engine behind the engine protocol."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from orchestra.api.base import to_builtins
from orchestra.api.changes import changed
from orchestra.api.doctor import Finding
from orchestra.api.engine import Cause, EngineError, Event, LogLine, LogQuery, NotFound, Run, Submission
from orchestra.api.job import TorchrunJob
from orchestra.api.labels import CANCEL_ANNOTATION, FOLDER_LABEL, JOB_LABEL, RETAINED_LABEL, ROLE_LABEL
from orchestra.api.queue import TorchrunQueue
from orchestra.api.spelling import nearest
from orchestra.cluster import doctor, happenings, observing, submitting
from orchestra.cluster.agents import pod_of_rank
from orchestra.cluster.bridge import Bridge
from orchestra.cluster.kinds import JOBS, Claim, Pod, age_order, read_job
from orchestra.cluster.logs import read_logs
from orchestra.cluster.refusals import told
from orchestra.cluster.why import causes
from orchestra.kube.client import Client
from orchestra.kube.config import Access
from orchestra.kube.errors import ApiError, KubeError
from orchestra.kube.listing import Selection
from orchestra.kube.objects import PODS, VOLUME_CLAIMS, Key, MetadataOnly
from orchestra.plan import status
from orchestra.sync.errors import SyncError

if TYPE_CHECKING:
    from orchestra.api.reloaded import Reloaded
    from orchestra.cluster.reloading import Reloading
    from orchestra.cluster.workspace import Proxy

A = TypeVar("A")
_REQUEST_SECONDS = 15.0
_GONE_SECONDS = 600.0
_CONFLICTS = 10


class KubernetesEngine:
    """Jobs of one namespace of a cluster (or of all, for lists), with the rights of whoever calls."""

    name = "kubernetes"
    tick = 0.5
    history_note = "runs that were deleted are known for about an hour, from their events, without their command"

    def __init__(
        self,
        access: Access,
        *,
        namespace: str | None = None,
        context: str = "",
        everywhere: bool = False,
        labels: str = "",
        on_warning: Callable[[str], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        """`everywhere` and `labels` choose what lists show."""
        self.access = access
        self.namespace = namespace or access.namespace
        self.everywhere, self.labels = everywhere, labels
        self.where = f"cluster {context or access.server}, namespace {self.namespace}"
        self._on_warning, self._note = on_warning, on_note or (lambda _: None)
        self._reloading: Reloading | None = None
        self._store: Proxy | None = None
        self._bridge = Bridge()
        self._client: Client | None = None

    def close(self) -> None:
        """Ends connections; the engine is not used any more."""
        if self._client is not None:
            self._bridge.close(self._client.close)

    def look(self) -> None:
        """The operator looks for us."""

    def again(self) -> KubernetesEngine:
        """The same engine for another thread: this one will do."""
        return self

    # ---- reading

    def get(self, name: str) -> TorchrunJob:
        """One job with its status."""
        return self.do(self._get(name))

    def jobs(self) -> list[TorchrunJob]:
        """All jobs, oldest first."""
        return self.do(self._jobs(self.labels))

    def history(self) -> list[Run]:
        """Every run that is still known: those that are there, and those whose events are."""
        return self.do(self._history())

    def newest(self, folder: Path) -> str | None:
        """Name of the newest job submitted from a folder of this machine."""
        mine = self.do(self._jobs(f"{FOLDER_LABEL}={submitting.folder_mark(str(folder))}"))
        return mine[-1].metadata.name if mine else None

    def from_folder(self, name: str, folder: Path, seconds: float) -> TorchrunJob | None:
        """The job of a name (any, if empty) that was submitted from a folder, unless the cluster is too slow."""

        async def look() -> list[TorchrunJob]:
            async with asyncio.timeout(seconds):
                return await self._jobs(f"{FOLDER_LABEL}={submitting.folder_mark(str(folder))}")

        try:
            mine = self.do(look())
        except TimeoutError as error:
            raise EngineError(f"{self.where} does not answer within {seconds:.0f} s") from error
        return next((job for job in reversed(mine) if name in ("", job.metadata.name)), None)

    def losses(self, name: str) -> list[float]:  # noqa: ARG002 -- only the last one is in the status
        """No curve: a cluster keeps the last loss only."""
        return []

    def places(self, name: str) -> dict[str, str]:
        """Where to look further: its pods, what is kept when it is deleted, what goes with it."""
        claims = self.do(self._claims(name))
        kept = [f"claim {one.metadata.name} (kept when the job is deleted)" for one in claims if _retained(one)]
        going = [f"claim {one.metadata.name}" for one in claims if not _retained(one)]
        places = {
            "pods": [f"kubectl -n {self.namespace} get pods -l {JOB_LABEL}={name}"],
            "output": kept,
            "volumes": going,
        }
        return {what: ", ".join(found) for what, found in places.items() if found}

    def logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        """Lines of all ranks; with `follow`, until the job has come to rest. Pods that are gone took theirs along."""
        uid = self.get(name).metadata.uid
        batches = read_logs(
            self.client, query, lambda: self._workers(name, uid), lambda: self._has_ended(name, uid)
        )  # fmt: skip
        return self._iterate(batches)

    def events(self, name: str) -> list[Event]:
        """What happened, oldest first, as far as the cluster remembers (about an hour)."""

        async def read() -> list[Event]:
            return await happenings.events_of(self.client, await self._get(name), self.namespace)

        return self.do(read())

    def why(self, name: str) -> list[Cause]:
        """Why the job is where it is."""

        async def look() -> list[Cause]:
            return causes(await observing.observe(self.client, await self._get(name), self.namespace))

        return self.do(look())

    def doctor(self) -> list[Finding]:
        """What the cluster lacks."""
        return self._bridge.run(doctor.examine(self.client, self.namespace))

    def queues(self) -> list[TorchrunQueue]:
        """The queues that jobs of this namespace can name: its own and the shared ones."""
        found, _ = self.do(submitting.visible_queues(self.client, None if self.everywhere else self.namespace))
        return found

    def workers(self, name: str) -> list[Pod]:
        """The job's worker pods, of all attempts that are there."""
        uid = self.get(name).metadata.uid
        return self.do(self._workers(name, uid))

    def pod_of_rank(self, pods: Sequence[Pod], rank: int) -> Pod:
        """The pod in which a rank runs."""
        return self.do(pod_of_rank(self.client, pods, rank))

    # ---- changing

    def submit(self, submission: Submission) -> TorchrunJob:
        """Creates the job. A finished job of the same name makes room for it; an active one does not."""
        self.do(submitting.check(self.client, self.namespace, submission))  # before a folder is sent for nothing
        queues = self.do(submitting.visible_queues(self.client, self.namespace))[0]
        queue = submission.queue or next(
            (one for one in queues if one.metadata.name == submission.job.spec.job_queue), None
        )
        if queue is not None:
            from orchestra.cluster.workspace import with_folder  # hashing and packing load only where they are used

            with self._people():
                submission = with_folder(self._bridge, self.client, self.namespace, submission, queue, self._note)
        return self.do(submitting.submit(self.client, self.namespace, submission))

    def folder(self, name: str) -> Path:
        """The folder that a job was submitted from: this one, for a cluster knows no other."""
        marked = self.get(name).metadata.labels.get(FOLDER_LABEL)
        if marked != submitting.folder_mark(str(Path.cwd())):
            raise EngineError(f"{name} was not submitted from this folder: go there, or submit it from here")
        return Path.cwd()

    def reloading(self, name: str) -> Reloading:
        """What new code for a job needs: the store, its workers, and the right to write it down."""
        from orchestra.cluster.reloading import Reloading
        from orchestra.cluster.workspace import store_of

        job = self.get(name)
        if self._store is None:  # kept, for its token is known to the store then
            self._store = store_of(self._bridge, self.client, self.namespace)
        self._reloading = Reloading(
            self._store, job, self.workers(name), lambda patch: self.do(self._patch(name, patch))
        )
        return self._reloading

    def sync(self, name: str, include: list[str] | None = None) -> Reloaded | None:
        """Brings this folder's changes into a running job and waits until all workers have them, or none."""
        folder = self.folder(name)
        with self._people():
            return self.reloading(name).sync(folder, include or [])

    def preload(self, name: str) -> Reloaded | None:
        """Has the next generation's processes ready, so that the next `sync` is quick."""
        with self._people():
            return self.reloading(name).preload()

    def stepped_at(self, name: str) -> float | None:  # noqa: ARG002 -- of the job that was given code last
        """When the first step with the new code was reported; None as long as none was. Waits a little."""
        if self._reloading is None:
            return None
        with self._people():
            return self._reloading.stepped_at()

    def suspend(self, name: str) -> TorchrunJob:
        """Asks for a checkpoint and a stop."""
        self._active(name, "suspended")
        return self.do(self._patch(name, {"spec": {"suspend": True}}))

    def resume(self, name: str, changes: dict[str, Any]) -> TorchrunJob:
        """Goes on from the last checkpoint."""
        return self.do(self._resume(name, changes))

    def cancel(self, name: str) -> TorchrunJob:
        """Stops the job for good."""
        job = self.get(name)
        if status.status_of(job).phase != "Suspended":
            self._active(name, "cancelled")
        stamp = status.timestamp(time.time())
        return self.do(self._patch(name, {"metadata": {"annotations": {CANCEL_ANNOTATION: stamp}}}))

    def scale(self, name: str, nodes: int) -> TorchrunJob:
        """Another number of nodes for an elastic job; the operator takes the new bounds in while it runs."""
        elastic = self.get(name).spec.elastic
        if elastic is None:
            way = f"suspend {name}, then resume {name} --set numNodes={nodes}"
            raise EngineError(f"{name} is not elastic, so its size is fixed while it runs; {way}")
        least = min(elastic.min_nodes or 1, nodes)
        return self.do(self._patch(name, {"spec": {"elastic": {"minNodes": least, "maxNodes": nodes}}}))

    def delete(self, name: str, *, purge: bool = False) -> None:
        """Stops the job, waits for its end, and forgets it. Retained claims stay unless purged."""
        self.do(self._delete(name, purge))

    # ---- within

    async def _get(self, name: str) -> TorchrunJob:
        try:
            return read_job(await self.client.get(JOBS, Key(self.namespace, name), msgspec.Raw))
        except ApiError as error:
            if not error.not_found or f'"{name}"' not in error.refusal.message:
                raise
        listed = await self.client.list_all(JOBS, MetadataOnly, Selection(self.namespace))
        guess = nearest(name, [one.metadata.name for one in listed])
        hint = f"; did you mean {guess}?" if guess else ""
        raise NotFound(f"there is no job {name} in {self.where}{hint}")

    async def _workers(self, name: str, uid: str | None) -> list[Pod]:
        """The job's workers, of all attempts."""
        selection = Selection(self.namespace, f"{JOB_LABEL}={name},{ROLE_LABEL}=worker")
        listed = await self.client.list_all(PODS, Pod, selection)
        mine = (pod for pod in listed if pod.metadata.controller_uid == uid)
        return sorted(mine, key=lambda pod: (pod.attempt, pod.index))

    async def _has_ended(self, name: str, uid: str | None) -> bool:
        """Whether this very job is at rest, or gone."""
        raw = await self.client.find(JOBS, Key(self.namespace, name), msgspec.Raw)
        job = read_job(raw) if raw is not None else None
        return job is None or job.metadata.uid != uid or status.at_rest(job)

    async def _jobs(self, labels: str) -> list[TorchrunJob]:
        selection = Selection(None if self.everywhere else self.namespace, labels)
        return sorted(map(read_job, await self.client.list_all(JOBS, msgspec.Raw, selection)), key=age_order)

    async def _history(self) -> list[Run]:
        jobs = await self._jobs(self.labels)
        gone = [] if self.labels else await happenings.gone_runs(
            self.client, None if self.everywhere else self.namespace, {job.metadata.uid for job in jobs}
        )  # fmt: skip
        return sorted([*gone, *(Run(job) for job in jobs)], key=lambda run: age_order(run.job))

    async def _claims(self, name: str) -> list[Claim]:
        return await self.client.list_all(VOLUME_CLAIMS, Claim, Selection(self.namespace, f"{JOB_LABEL}={name}"))

    def _active(self, name: str, done: str) -> None:
        phase = status.status_of(self.get(name)).phase
        if phase in status.RESTING:
            raise EngineError(f"{name} is {phase} already; it cannot be {done}")

    async def _resume(self, name: str, changes: dict[str, Any]) -> TorchrunJob:
        for _ in range(_CONFLICTS):
            job = await self._get(name)
            phase = status.status_of(job).phase
            if not job.spec.suspend:
                raise EngineError(f"{name} is {phase}, not Suspended; there is nothing to resume")
            if phase != "Suspended":
                raise EngineError(f"{name} is still {phase} and saving; wait --for=Suspended, then resume")
            made = changed(job, changes) if changes else job
            spec = difference(to_builtins(job.spec), to_builtins(made.spec)) | {"suspend": False}
            patch = {"metadata": {"resourceVersion": job.metadata.resource_version}, "spec": spec}
            try:
                return await self._patch(name, patch)
            except ApiError as error:
                if not error.conflict:  # its status is written often; look again
                    raise
        raise EngineError(f"{name} is being changed by somebody else all the time; try again")

    async def _patch(self, name: str, patch: dict[str, Any]) -> TorchrunJob:
        return read_job(await self.client.patch(JOBS, Key(self.namespace, name), patch, msgspec.Raw))

    async def _delete(self, name: str, purge: bool) -> None:
        job = await self._get(name)
        client, key, uid = self.client, Key(self.namespace, name), job.metadata.uid or ""
        await client.delete(JOBS, key, uid=uid, propagation="Foreground")
        if not await submitting.gone(client, key, uid, _GONE_SECONDS):
            raise EngineError(f"{name} is still going after {_GONE_SECONDS:.0f} s; {self.where}")
        if purge:
            for claim in await self._claims(name):
                if _retained(claim):
                    await client.delete(VOLUME_CLAIMS, claim.metadata.key, uid=claim.metadata.uid)

    @property
    def client(self) -> Client:
        """The connection, opened by its first use; for what runs under `do`."""
        if self._client is None:
            self._client = Client(self.access, manager="orchestra-cli", request_seconds=_REQUEST_SECONDS)
            if self._on_warning is not None:
                self._client.on_warning = self._on_warning
        return self._client

    def do(self, work: Coroutine[Any, Any, A]) -> A:
        """Waits for some work with the client. What goes wrong is told in the words of users."""
        with self._people():
            return self._bridge.run(work)

    def _iterate(self, batches: AsyncGenerator[Sequence[LogLine], None]) -> Iterator[LogLine]:
        with self._people():
            yield from self._bridge.iterate(batches)

    @contextlib.contextmanager
    def _people(self) -> Iterator[None]:
        try:
            yield
        except KubeError as error:
            raise told(error, self.access.server) from error
        except SyncError as error:
            raise EngineError(str(error)) from error


def _retained(claim: Claim) -> bool:
    return (claim.metadata.labels or {}).get(RETAINED_LABEL) == "true"


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A merge patch from one object to another."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        if name not in old:
            patch[name] = value
        elif isinstance(value, dict) and isinstance(old[name], dict):
            inner = difference(old[name], value)
            patch |= {name: inner} if inner else {}
        elif value != old[name]:
            patch[name] = value
    return patch
