"""Events for people (`kubectl describe`): said once, counted when repeated, never in the way of the work.

Best effort by design: an event that cannot be sent is dropped and counted. State belongs into statuses.
"""

import asyncio
import datetime
import logging
import secrets
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from orchestra.kube.client import Client
from orchestra.kube.errors import KubeError
from orchestra.kube.limits import Bucket
from orchestra.kube.metrics import Metrics
from orchestra.kube.objects import EVENTS, Key, Metadata, MetadataOnly, Resource, Slim

_SERIES_SECONDS = 360.0
"""A repetition within this time belongs to the same series; the server keeps events for an hour."""
_LONGEST_NOTE = 1024
_MOST_SERIES = 4096
_log = logging.getLogger(__name__)


class ObjectReference(Slim, frozen=True):
    """What an event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    @classmethod
    def to(cls, resource: Resource, metadata: Metadata) -> "ObjectReference":
        """A reference to an object of a kind."""
        return cls(
            api_version=resource.api_version,
            kind=resource.kind,
            name=metadata.name,
            namespace=metadata.namespace,
            uid=metadata.uid,
        )


class Said(msgspec.Struct, frozen=True):
    """One event as the caller says it; saying it twice makes a series."""

    regarding: ObjectReference
    type: Literal["Normal", "Warning"]
    reason: str
    action: str
    note: str


class _Series(msgspec.Struct):
    key: Key
    count: int
    last: float
    sent: bool = False
    unsaid: bool = False  # counted since the server was last told


class EventRecorder:
    """Say things with `emit`; `run` sends them, at a bounded rate."""

    def __init__(
        self,
        client: Client,
        *,
        controller: str,
        instance: str,
        rate: float = 10.0,
        burst: int = 100,
        waiting: int = 1000,
        series_every: float = 10.0,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._controller = controller
        self._instance = instance
        self._bucket = Bucket(rate, burst, clock)
        self._fresh: asyncio.Queue[Said] = asyncio.Queue(waiting)
        self._series: dict[Said, _Series] = {}
        self._series_every = series_every
        self._clock = clock
        dropped = (metrics or Metrics()).counter("events_dropped_total", "Events not sent.", "controller")
        self.dropped = dropped.labels(controller)

    def emit(
        self,
        regarding: ObjectReference,
        *,
        reason: str,
        note: str,
        action: str = "Reconcile",
        type: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Say it. Returns at once; what is too much is dropped."""
        said = Said(regarding, type, reason[:128], action[:128], note[:_LONGEST_NOTE])
        now = self._clock()
        known = self._series.get(said)
        if known is not None and now - known.last <= _SERIES_SECONDS:
            known.count, known.last, known.unsaid = known.count + 1, now, True
            return
        if self._fresh.full() or len(self._series) >= _MOST_SERIES:
            self.dropped.inc()
            return
        name = f"{regarding.name[:200]}.{secrets.token_hex(8)}"
        self._series[said] = _Series(Key(regarding.namespace or "default", name), 1, now)
        self._fresh.put_nowait(said)

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_fresh())
            group.create_task(self._send_series())

    async def flush(self, patience: float = 2.0) -> None:
        """Before the end: wait until what was said is sent, but not for long."""
        try:
            async with asyncio.timeout(patience):
                await self._fresh.join()
        except TimeoutError:
            _log.info("%d events were not sent", self._fresh.qsize())

    async def _send_fresh(self) -> None:
        while True:
            said = await self._fresh.get()
            try:
                await asyncio.sleep(self._bucket.reserve())
                series = self._series[said]
                await self._client.create(EVENTS, series.key.namespace, self._body(said, series.key), MetadataOnly)
                series.sent = True
            except KubeError as error:
                self._series.pop(said, None)
                self.dropped.inc()
                _log.info("an event was not sent: %s", error)
            finally:
                self._fresh.task_done()

    async def _send_series(self) -> None:
        while True:
            await asyncio.sleep(self._series_every)
            now = self._clock()
            for said, series in list(self._series.items()):
                if series.unsaid and series.sent:
                    await asyncio.sleep(self._bucket.reserve())
                    await self._send_count(said, series)
                elif series.sent and now - series.last > _SERIES_SECONDS:
                    del self._series[said]

    async def _send_count(self, said: Said, series: _Series) -> None:
        series.unsaid = False
        patch = {"series": {"count": series.count, "lastObservedTime": _now()}}
        try:
            await self._client.patch(EVENTS, series.key, patch, MetadataOnly)
        except KubeError as error:
            self._series.pop(said, None)  # it may have been collected: the next one is said anew
            self.dropped.inc()
            _log.info("an event was not counted: %s", error)

    def _body(self, said: Said, key: Key) -> dict[str, object]:
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": key.name, "namespace": key.namespace},
            "eventTime": _now(),
            "reportingController": self._controller,
            "reportingInstance": self._instance[:128],
            "type": said.type,
            "reason": said.reason,
            "action": said.action,
            "note": said.note,
            "regarding": said.regarding,
        }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
