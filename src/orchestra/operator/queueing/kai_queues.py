"""Keeps KAI Queues as the TorchrunQueues say, and takes none away that somebody uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from orchestra.api.queue import TorchrunQueueSpec
from orchestra.kube.cache import Cache
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError
from orchestra.kube.listing import EVERYTHING
from orchestra.kube.objects import Key, Metadata, MetadataOnly
from orchestra.operator.kinds import KAI_POD_GROUPS, QUEUES, JobObject
from orchestra.operator.queueing import kai
from orchestra.operator.queueing.findings import Finding
from orchestra.operator.queueing.kinds import KAI_QUEUES, KaiQueue, KaiQueueSpec, PodGroup
from orchestra.operator.queueing.line import name_some
from orchestra.operator.queueing.lookup import QueueLookup, kai_queue_of, status_seen
from orchestra.plan.planner import KAI_SCHEDULER

_READY = "KaiQueueReady"
_NAMED = 5

From = Literal["shared", "all"]


class KaiQueues:
    """The KAI side of TorchrunQueues. Without a cache (Roles only) KAI Queues are left alone."""

    def __init__(
        self,
        client: Client,
        known: Cache[KaiQueue] | None,
        lookup: QueueLookup,
        jobs: Cache[JobObject],
        *,
        made_from: From = "all",
    ) -> None:
        self._client, self._known, self._lookup = client, known, lookup
        self._jobs_by_uid = jobs.index(lambda job: (job.metadata.uid,))
        self._made_from = made_from

    async def ensure(self, queue: Metadata, spec: TorchrunQueueSpec) -> Finding | None:
        """Make it so, and say how it is; None for a queue that has nothing to do with KAI."""
        name = spec.kai_queue
        if name is None:
            return await self._of_scheduler(queue, spec)
        if self._known is None:
            words = f"this operator may not look at KAI Queues (--namespaces): see that {name} exists"
            return Finding(_READY, True, "NotLooked", words)
        if not await self._served():
            words = (
                "this cluster does not serve KAI's Queue (scheduling.run.ai/v2); install KAI, or remove spec.kaiQueue"
            )
            return Finding(_READY, False, "KaiNotInstalled", words)
        if self._made_from == "shared" and queue.namespace != self._lookup.shared_namespace:
            return self._not_from_here(name)
        try:
            return await self._ensure(queue, spec, name)
        except ApiError as error:
            if error.code in (400, 403, 422):
                return Finding(_READY, False, "Refused", f"KAI Queue {name}: {error.refusal.message}")
            raise

    async def release(self, queue: Metadata) -> list[str]:
        """Let go of all KAI Queues that are this TorchrunQueue's. Says which of them stay, and why.

        Asked of the server: where KAI was just installed, the cache may not know yet what we made ourselves.
        """
        if self._known is None or not await self._served():
            return []
        return await self._let_go(queue, await self._there())

    async def release_others(self, queue: Metadata, keep: str | None) -> None:
        """Let go of those that this TorchrunQueue does not name any more."""
        mine = [one for one in self._known or () if one.annotation(kai.OWNER_UID) == queue.uid]
        if any(one.metadata.name != keep for one in mine):
            await self._let_go(queue, await self._there(), keep)

    async def _there(self) -> list[KaiQueue]:
        """All that can be read: somebody's odd one must not keep ours."""
        pages = await self._client.pages(KAI_QUEUES, KaiQueue, EVERYTHING)
        return [one for page in pages for one in page.items]

    async def _let_go(self, queue: Metadata, there: list[KaiQueue], keep: str | None = None) -> list[str]:
        left = []
        for one in there:
            name = one.metadata.name
            if one.annotation(kai.OWNER_UID) != queue.uid or name == keep:
                continue
            used = await self._handed_on(queue, one) or await self._used_by(name, _below(there, name))
            if used:
                left.append(f"KAI Queue {name} stays: {used}")
            else:
                await self._client.delete(KAI_QUEUES, one.metadata.key, uid=one.metadata.uid)
        return left

    # ---- one KAI Queue

    async def _ensure(self, queue: Metadata, spec: TorchrunQueueSpec, name: str) -> Finding:
        wanted = kai.wanted(spec)
        await self._ensure_parent(spec.parent_kai_queue)
        current = self._cached(name)
        if current is None:
            try:
                current = await self._client.create(KAI_QUEUES, "", kai.queue_body(name, wanted, queue), KaiQueue)
            except ApiError as error:
                if not error.already_exists:
                    raise
                current = await self._client.get(KAI_QUEUES, Key("", name), KaiQueue)
        below = _below(self._known or (), name)
        if below:
            some = name_some(below, _NAMED)
            words = f"KAI Queue {name} has queues below it, so KAI runs nothing in it; name one of those: {some}"
            return Finding(_READY, False, "NotALeaf", words)
        owner = current.annotation(kai.OWNER_UID)
        if not owner:
            words = f"KAI Queue {name} was not made by Orchestra: it is used as it is, and never changed"
            return Finding(_READY, True, "NotOurs", words)
        if owner != queue.uid and await self._lives(current):
            return _of_another(name, wanted, current)
        if owner != queue.uid or current.spec != wanted:
            await self._client.patch(KAI_QUEUES, Key("", name), kai.change(current, wanted, queue), MetadataOnly)
        return Finding(_READY, True, "Kept", f"KAI Queue {name} is as this queue says")

    async def _ensure_parent(self, name: str) -> None:
        if self._cached(name) is None:
            try:
                await self._client.create(KAI_QUEUES, "", kai.parent_body(name), MetadataOnly)
            except ApiError as error:
                if not error.already_exists:
                    raise

    async def _of_scheduler(self, queue: Metadata, spec: TorchrunQueueSpec) -> Finding | None:
        """KAI places the jobs, but no KAI Queue is named: they go to one that is called like this queue."""
        scheduling = spec.scheduling
        if scheduling is None or scheduling.scheduler != KAI_SCHEDULER or self._known is None:
            return None
        if self._cached(queue.name) is not None:
            return Finding(_READY, True, "NotOurs", f"jobs go to the KAI Queue {queue.name}")
        words = f"jobs would go to a KAI Queue {queue.name}, which is not there; name one in spec.kaiQueue"
        return Finding(_READY, False, "NotFound", words)

    def _not_from_here(self, name: str) -> Finding:
        shared = self._lookup.shared_namespace
        words = f"KAI Queues are made only from queues in namespace {shared} (--kai-queues-from=shared)"
        if self._cached(name) is not None:
            return Finding(_READY, True, "NotOurs", f"KAI Queue {name} is used as it is; {words}")
        return Finding(_READY, False, "NotFromHere", f"there is no KAI Queue {name}; {words}")

    async def _handed_on(self, queue: Metadata, current: KaiQueue) -> str:
        """Give it to another TorchrunQueue that names it, if there is one."""
        name = current.metadata.name
        for other in sorted(
            self._lookup.queues, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.uid)
        ):
            meta = other.metadata
            if meta.uid == queue.uid or meta.deletion_timestamp is not None or kai_queue_of(other) != name:
                continue
            if self._made_from == "shared" and meta.namespace != self._lookup.shared_namespace:
                continue
            patch = kai.change(current, current.spec, meta)
            await self._client.patch(KAI_QUEUES, current.metadata.key, {"metadata": patch["metadata"]}, MetadataOnly)
            return f"TorchrunQueue {meta.key} uses it too, and keeps it from now on"
        return ""

    async def _used_by(self, name: str, below: list[str]) -> str:
        """Who else uses a KAI Queue, in words; empty when nobody does."""
        if below:
            return f"the KAI Queues {name_some(below, _NAMED)} are below it"
        try:
            pages = await self._client.pages(KAI_POD_GROUPS, PodGroup, EVERYTHING)
        except ApiError as error:
            if not error.not_found:
                raise
            pages = []
        groups = [one for page in pages for one in page.items]
        using = [str(one.metadata.key) for one in groups if one.spec.queue == name and not self._is_over(one)]
        return f"the PodGroups {name_some(using, _NAMED)} are in it" if using else ""

    def _is_over(self, group: PodGroup) -> bool:
        """Whether it belongs to a job of ours that ended: the group stays for as long as the job does."""
        owners = self._jobs_by_uid.get(group.metadata.controller_uid)
        return any(status_seen(job).finished for job in owners)

    async def _lives(self, current: KaiQueue) -> bool:
        """Whether its owner is still there: asked of the server, for a cache may be behind."""
        namespace, _, name = current.annotation(kai.OWNER).partition("/")
        if not namespace or not name:
            return False
        owner = await self._client.find(QUEUES, Key(namespace, name), MetadataOnly)
        return owner is not None and owner.metadata.uid == current.annotation(kai.OWNER_UID)

    def _cached(self, name: str) -> KaiQueue | None:
        return self._known.get(Key("", name)) if self._known is not None else None

    async def _served(self) -> bool:
        """A KAI Queue in the cache is proof; else the server is asked, for KAI may come and go."""
        return bool(self._known) or await self._client.served(KAI_QUEUES)


def _below(there: Iterable[KaiQueue], name: str) -> list[str]:
    return sorted(one.metadata.name for one in there if one.spec.parent_queue == name)


def _of_another(name: str, wanted: KaiQueueSpec, current: KaiQueue) -> Finding:
    other = current.annotation(kai.OWNER)
    if wanted == current.spec:
        return Finding(
            _READY, True, "SharedWith", f"KAI Queue {name} is kept by TorchrunQueue {other}, which says the same"
        )
    words = (
        f"KAI Queue {name} is kept by TorchrunQueue {other}, which wants {kai.differences(wanted, current.spec)}; "
        "make them agree, or name another kaiQueue"
    )
    return Finding(_READY, False, "Disagrees", words)
