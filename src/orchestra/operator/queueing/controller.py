"""The TorchrunQueue controller: check it, keep its KAI Queue, count its jobs, and let it go when nobody uses it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from orchestra.api.problem import Problem
from orchestra.api.queue import TorchrunQueueSpec
from orchestra.kube.cache import Cache, Change
from orchestra.kube.client import Client
from orchestra.kube.controller import Controller, Result, changed_by_others
from orchestra.kube.errors import ApiError
from orchestra.kube.events import EventRecorder, ObjectReference
from orchestra.kube.objects import Key, Metadata, MetadataOnly
from orchestra.kube.status import StatusWriter
from orchestra.kube.writes import Replaced
from orchestra.operator.kinds import QUEUES, JobObject, QueueObject
from orchestra.operator.queueing.checks import missing_references, template_problems
from orchestra.operator.queueing.findings import (
    Finding,
    census,
    counted,
    in_use,
    of_problems,
    only_counts_differ,
    status_json,
)
from orchestra.operator.queueing.kai import OWNER
from orchestra.operator.queueing.kai_queues import KaiQueues
from orchestra.operator.queueing.kinds import Classes, KaiQueue
from orchestra.operator.queueing.lookup import QueueLookup, kai_queue_of, status_seen

FINALIZER = "torchrun.ai/queue"
"""Keeps a queue while unfinished jobs use it, and until its KAI Queue is let go."""
_COUNT_SECONDS = 3.0  # numbers alone are written so often at most
_SOON = 0.5  # jobs come in bursts: count them once
_KAI_AGAIN = 60.0

Json = dict[str, Any]


class QueueController:
    """Brings one queue after the other in line."""

    def __init__(
        self,
        client: Client,
        lookup: QueueLookup,
        classes: Classes,
        kai_queues: KaiQueues,
        events: EventRecorder,
        *,
        namespaces: Collection[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`namespaces`: only queues there are kept; whoever does not see all jobs must not speak for a shared one."""
        self._client, self._lookup, self._classes, self._kai = client, lookup, classes, kai_queues
        self._events, self._namespaces, self._clock = events, namespaces, clock
        self._statuses = StatusWriter(client, QUEUES)
        self._written: dict[str, tuple[float, Json]] = {}
        self._checked: dict[str, tuple[int, list[Problem]]] = {}

    def watch(self, controller: Controller[Key], jobs: Cache[JobObject], kai_queues: Cache[KaiQueue] | None) -> None:
        """Everything that changes what is said about a queue."""
        queues = self._lookup.queues
        controller.watch(queues, lambda queue: [queue.metadata.key], worth=changed_by_others)
        queues.listen(self._forget)

        def recount(change: Change[JobObject]) -> None:
            old, new = change.old, change.new
            if old is not None and new is not None and counted(status_seen(old)) == counted(status_seen(new)):
                return
            job = new or old
            queue = self._lookup.queue_of(job) if job is not None else None
            if queue is not None:
                controller.queue.add_after(queue.metadata.key, _SOON)

        def look_all(_: object) -> None:
            for queue in queues:
                controller.queue.add(queue.metadata.key)

        def look_at_kai(change: Change[KaiQueue]) -> None:
            owners = {one.annotation(OWNER) for one in (change.old, change.new) if one is not None}
            for queue in queues:
                if kai_queue_of(queue) == change.key.name or str(queue.metadata.key) in owners:
                    controller.queue.add(queue.metadata.key)

        jobs.listen(recount)
        if self._classes.priorities is not None:
            self._classes.priorities.listen(look_all)
        if self._classes.storage is not None:
            self._classes.storage.listen(look_all)
        if kai_queues is not None:
            kai_queues.listen(look_at_kai)

    async def reconcile(self, key: Key) -> Result | None:
        """One look at one queue."""
        found = self._lookup.queues.get(key)
        if found is None or (self._namespaces and key.namespace not in self._namespaces):
            return None
        meta = found.metadata
        there = census(meta.namespace, self._lookup.jobs_of(meta))
        if meta.deletion_timestamp is not None:
            if FINALIZER not in meta.finalizers:
                return None
            if not there.unfinished:
                await self._let_go(meta)
                return None
        elif FINALIZER not in meta.finalizers:
            await self._set_finalizers(meta, [*meta.finalizers, FINALIZER])
        spec, findings = await self._look(found)
        if meta.deletion_timestamp is not None:
            findings.append(in_use(there))
        before: Json = msgspec.json.decode(found.status)
        status = status_json(
            before,
            findings,
            there,
            quota=_quota(spec),
            kai=spec.kai_queue if spec else None,
            generation=meta.generation,
            deleting=meta.deletion_timestamp is not None,
            now=self._clock(),
        )
        later = await self._write(meta, before, status)
        if later is not None:
            return Result(later)
        self._tell(meta, before, findings)
        not_served = any(one.reason == "KaiNotInstalled" for one in findings)
        return Result(_KAI_AGAIN) if not_served else None

    async def _look(self, found: QueueObject) -> tuple[TorchrunQueueSpec | None, list[Finding]]:
        meta = found.metadata
        try:
            spec = found.read_spec()
        except msgspec.ValidationError as error:
            problem = Problem("spec", f"cannot be read: {error}", "mend it with kubectl edit")
            return None, [of_problems("Valid", "Invalid", "Valid", [problem])]
        findings = [
            of_problems("Valid", "Invalid", "Valid", await self._template_problems(meta, spec)),
            of_problems("ReferencesFound", "NotFound", "Found", missing_references(spec, self._classes)),
        ]
        if meta.deletion_timestamp is None:
            kai = await self._kai.ensure(meta, spec)
            await self._kai.release_others(meta, keep=spec.kai_queue)
            findings += [kai] if kai is not None else []
        return spec, findings

    async def _template_problems(self, meta: Metadata, spec: TorchrunQueueSpec) -> list[Problem]:
        """Asked once a generation: the answer does not change by itself."""
        known = self._checked.get(meta.uid)
        if known is None or known[0] != meta.generation:
            known = meta.generation, await template_problems(self._client, meta.namespace, meta.name, spec)
            self._checked[meta.uid] = known
        return known[1]

    # ---- writing

    async def _write(self, meta: Metadata, before: Json, status: Json) -> float | None:
        """Write it; or, where only numbers changed a moment ago, the seconds until it may be written."""
        now = self._clock()
        last = self._written.get(meta.uid)
        if last is not None and last[1] != status and only_counts_differ(last[1], status):
            left = last[0] + _COUNT_SECONDS - now
            if 0 < left <= _COUNT_SECONDS:
                return left
        try:
            if await self._statuses.write(meta, before, status):
                self._written[meta.uid] = (now, status)
        except Replaced:
            self._forget_uid(meta.uid)
        return None

    async def _let_go(self, meta: Metadata) -> None:
        for words in await self._kai.release(meta):
            self._events.emit(ObjectReference.to(QUEUES, meta), reason="KaiQueueStays", note=words, type="Normal")
        await self._set_finalizers(meta, [one for one in meta.finalizers if one != FINALIZER])

    async def _set_finalizers(self, meta: Metadata, finalizers: list[str]) -> None:
        """Refused by the server if the queue changed meanwhile; then it is looked at again."""
        metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers}
        try:
            await self._client.patch(QUEUES, meta.key, {"metadata": metadata}, MetadataOnly)
        except ApiError as error:
            if not error.not_found:
                raise

    def _tell(self, meta: Metadata, before: Json, findings: list[Finding]) -> None:
        """Events for what went wrong since."""
        known = {one.get("type"): one for one in before.get("conditions", [])}
        for one in findings:
            said = known.get(one.type, {})
            if not one.good and (said.get("status"), said.get("reason")) != ("False", one.reason):
                reference = ObjectReference.to(QUEUES, meta)
                self._events.emit(reference, reason=one.reason, note=one.message, type="Warning")

    def _forget(self, change: Change[QueueObject]) -> None:
        if change.new is None and change.old is not None:
            self._forget_uid(change.old.metadata.uid)

    def _forget_uid(self, uid: str) -> None:
        self._statuses.forget(uid)
        self._written.pop(uid, None)
        self._checked.pop(uid, None)


def _quota(spec: TorchrunQueueSpec | None) -> int:
    quota = spec.resources.gpu.quota if spec else None
    return -1 if quota is None or quota.value < 0 else min(quota.whole, 2**53)
