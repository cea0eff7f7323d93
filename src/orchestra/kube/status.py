"""Status writes: none without need, none lost, none to the wrong object.

By server-side apply, so each writer owns its fields: what others write into the same status stays, and lists with keys
(conditions by type) are merged by the server. A forced apply needs no retries when others write too.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from orchestra.kube.backoff import Backoff
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError
from orchestra.kube.objects import Metadata, MetadataOnly, Resource, Slim
from orchestra.kube.watch import newer
from orchestra.kube.writes import Replaced, means_another

_ATTEMPTS = 10
_AGAIN = Backoff(first=0.01, longest=0.5)


class _WithStatus(Slim, frozen=True):
    metadata: Metadata
    status: Any = None


class _Written(msgspec.Struct, frozen=True):
    status: Any
    version: str
    at: float


class StatusWriter:
    """Writes the statuses of one kind, and remembers what it wrote: a cache is behind its own writers."""

    def __init__(self, client: Client, resource: Resource) -> None:
        self._client = client
        self._resource = resource
        self._written: dict[str, _Written] = {}

    async def write(
        self,
        current: Metadata,
        observed: object,
        desired: object,
        *,
        guarded: bool = False,
        still: Callable[[Any], bool] = lambda _status: True,
    ) -> bool:
        """Make the status what is desired (as far as it is ours); False when nothing had to be written.

        `observed` is the status in the cache. Guarded: only if the object still has this UID, for what must never
        reach a namesake (attempts, terminal phases), and only while its status, which others may have changed, is
        `still` as it was decided on; if not, the server's refusal is raised. Unguarded, the server of a custom
        resource does not look at the UID. Replaced when the object is gone.
        """
        status = msgspec.to_builtins(desired)
        if self._unchanged(current, msgspec.to_builtins(observed), status):
            return False
        version = await (self._guarded(current, status, still) if guarded else self._apply(current, status, None))
        self._written[current.uid] = _Written(status, version, time.monotonic())
        return True

    def younger_than(self, uid: str, seconds: float) -> float:
        """How long until the last write is as old as this; 0 when it is, or when there was none."""
        last = self._written.get(uid)
        return max(0.0, last.at + seconds - time.monotonic()) if last is not None else 0.0

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._written.pop(uid, None)

    def has_written(self, uid: str) -> bool:
        """Whether this process wrote the object's status before."""
        return uid in self._written

    def ahead_of(self, current: Metadata) -> bool:
        """Whether this state of the object is from before our last write."""
        last = self._written.get(current.uid)
        return last is not None and newer(last.version, current.resource_version)

    def _unchanged(self, current: Metadata, observed: Any, status: Any) -> bool:
        last = self._written.get(current.uid)
        if last is None:
            # After a restart: what is there is what we wrote, but the server keeps lists in an order of its own.
            return contains(observed, status) and contains(status, observed)
        if last.status != status:
            return False
        return newer(last.version, current.resource_version) or contains(observed, status)

    async def _guarded(self, current: Metadata, status: Any, still: Callable[[Any], bool]) -> str:
        """The server checks a resourceVersion everywhere, a UID only on some: so the version is tested, and when
        it has moved on, the UID is looked at and the new version is tested.
        """
        version, attempt = current.resource_version, 0
        while True:
            attempt += 1
            try:
                return await self._apply(current, status, version)
            except ApiError as error:
                if not error.conflict or attempt >= _ATTEMPTS:
                    raise
                refused = error
            if attempt > 1:
                await asyncio.sleep(_AGAIN.delay(attempt))
            fresh = await self._client.find(self._resource, current.key, _WithStatus)
            if fresh is None or fresh.metadata.uid != current.uid:
                raise Replaced(f"{self._resource.kind} {current.key} is no longer {current.uid}")
            if not still(fresh.status):
                raise refused
            version = fresh.metadata.resource_version

    async def _apply(self, current: Metadata, status: Any, version: str | None) -> str:
        metadata = {"name": current.name, "uid": current.uid}
        if current.namespace:
            metadata["namespace"] = current.namespace
        if version is not None:
            metadata["resourceVersion"] = version
        resource = self._resource
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status}
        try:
            written = await self._client.apply(resource, current.key, body, MetadataOnly, subresource="status")
        except ApiError as error:
            if means_another(error):
                raise Replaced(str(error)) from error
            raise
        return written.metadata.resource_version


def contains(whole: Any, part: Any) -> bool:
    """Whether all of `part` is in `whole`; lists of things with a `type` are compared type by type."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(name in whole and contains(whole[name], part[name]) for name in part)
    if isinstance(part, list) and part and all(isinstance(item, dict) and "type" in item for item in part):
        there = {item.get("type"): item for item in whole if isinstance(item, dict)} if isinstance(whole, list) else {}
        return all(item["type"] in there and contains(there[item["type"]], item) for item in part)
    return bool(whole == part)
