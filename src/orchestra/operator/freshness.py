"""Whether what the caches say of a job is what there is, before something is done about it.

They are behind what was written: by this process (a job's own watch may be slower than that of its pods), or by the
leader before it, whose last writes this one's watches may not have brought yet. A decision on an old state could delete
the pods that were made a moment ago, or count an attempt a second time.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestra.kube.client import Client
from orchestra.kube.listing import Selection
from orchestra.kube.objects import PODS, MetadataOnly
from orchestra.kube.status import StatusWriter
from orchestra.operator.decision import Decision
from orchestra.operator.kinds import JOB_LABEL, JOBS, JobObject, PodObject

SOON = 0.1


class Freshness:
    """Asks the server once a job and leadership, and only where something is to be done to what is there."""

    def __init__(self, client: Client, statuses: StatusWriter) -> None:
        self._client, self._statuses = client, statuses
        self._confirmed: set[str] = set()

    def behind(self, found: JobObject) -> bool:
        """Whether the cache has not seen yet what this process wrote last."""
        return self._statuses.ahead_of(found.metadata)

    def doubtful(self, found: JobObject, pods: Iterable[PodObject], decision: Decision) -> bool:
        """Whether it must be asked for first. A new job needs no question: its first status write is refused if not."""
        acts = (
            decision.create
            or decision.fill
            or decision.replace
            or decision.delete
            or decision.stop
            or decision.delete_job
        )
        uid = found.metadata.uid
        known = uid in self._confirmed or self._statuses.has_written(uid)
        return bool(acts) and not known and (found.read_status().phase is not None or any(True for _ in pods))

    async def confirm(self, found: JobObject, pods: Iterable[PodObject]) -> bool:
        """Ask the server; False when the caches are behind."""
        meta = found.metadata
        there = await self._client.find(JOBS, meta.key, MetadataOnly)
        if there is None or there.metadata.resource_version != meta.resource_version:
            return False
        mine = Selection(namespace=meta.namespace, labels=f"{JOB_LABEL}={meta.name}")
        listed = await self._client.list_all(PODS, MetadataOnly, mine)
        owned = {pod.metadata.uid for pod in listed if pod.metadata.controller_uid == meta.uid}
        if owned != {pod.metadata.uid for pod in pods}:
            return False
        self._confirmed.add(meta.uid)
        return True

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._confirmed.discard(uid)
