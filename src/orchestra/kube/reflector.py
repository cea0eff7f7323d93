"""Keeps a cache equal to what the API server has, through everything that can happen on the way.

Promised: each change is seen, or its effect is (deletions that nobody told us about included); nothing older replaces
what is newer. Not promised: that each intermediate state is seen, or that an etcd restored from a backup to an older
state is noticed by more than the next relist.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Generic

import msgspec

from orchestra.kube.backoff import Backoff
from orchestra.kube.cache import Cache
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError, KubeError, Unreachable
from orchestra.kube.listing import EVERYTHING, Page, Selection
from orchestra.kube.metrics import Metrics
from orchestra.kube.objects import Key, MetadataOnly, Resource, T
from orchestra.kube.transport import SILENCE_SECONDS
from orchestra.kube.watch import (
    EventType,
    LineSplitter,
    decode_bookmark,
    decode_event,
    error_of,
    newer,
    object_event_decoder,
)

_HEALTHY_SECONDS = 10.0
_log = logging.getLogger(__name__)


class ReflectorOptions(msgspec.Struct, frozen=True):
    """How patient and how large; the defaults are for clusters, tests are in a hurry."""

    silence: float = SILENCE_SECONDS
    """Seconds without a byte after which a watch is taken for dead."""
    backoff: Backoff = Backoff(first=0.2, longest=30.0)
    page: int = 500
    watch_list: bool = True
    """Whether to ask for the initial objects on the watch itself; where the server cannot, they are listed."""
    watch_list_patience: float = 60.0
    """Servers before 1.27 ignore that wish, and the end of the initial objects never comes."""


class Reflector(Generic[T]):
    """One kind, one selection, one cache."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        kind: type[T],
        cache: Cache[T],
        *,
        selection: Selection = EVERYTHING,
        optional: bool = False,
        options: ReflectorOptions | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.resource = resource
        self.cache = cache
        self.heard = clock()
        """When the last byte came, on the monotonic clock."""
        self.undecodable: dict[Key, str] = {}
        """Objects that do not fit the caller's struct, and why. The cache has their last readable state, if any."""
        self.served: bool | None = None
        """Whether the server knows this kind (and, where it is optional, lets us see it); None until it said so."""
        self._client = client
        self._kind = kind
        self._decode = client.decoder(kind).decode
        self._decode_event = object_event_decoder(kind)
        self._selection = selection
        self._optional = optional
        self._options = options = options or ReflectorOptions()
        self._clock = clock
        self._version: str | None = None  # None: list first
        self._collecting: dict[Key, T] | None = None
        self._watch_list = options.watch_list
        self._failures = 0
        self._synced = asyncio.Event()
        metrics = metrics or Metrics()
        name = str(resource)
        self.lists = metrics.counter("reflector_lists_total", "Full lists, by any means.", "name").labels(name)
        self._events = metrics.counter("reflector_events_total", "Watch events taken.", "name").labels(name)
        self.stale = metrics.counter("reflector_stale_events_total", "Events older than known.", "name").labels(name)
        self.errors = metrics.counter("reflector_errors_total", "Broken or refused watches.", "name").labels(name)

    @property
    def synced(self) -> bool:
        """Whether the cache has once been whole."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Until the cache has once been whole."""
        await self._synced.wait()

    async def run(self) -> None:
        """Until cancelled. Errors of the server and of the network are logged and waited out, for ever."""
        while True:
            began = self._clock()
            error: Exception | None = None
            try:
                await self._once()
            except (KubeError, msgspec.DecodeError) as caught:
                error = caught
            lasted = self._clock() - began
            if lasted >= _HEALTHY_SECONDS:
                self._failures = 0
            if error is None and lasted >= 1.0:
                continue  # an ordinary end: the server closes each watch after some minutes
            # Refused, broken, or ended as soon as it began: not to become a hot loop.
            self._failures += 1
            delay = self._options.backoff.delay(self._failures)
            level = logging.WARNING if self._failures in (1, 2) or self._failures % 10 == 0 else logging.DEBUG
            if isinstance(error, ApiError):
                delay = max(delay, error.retry_after or 0.0)
                if error.gone:
                    self._version = None
                elif error.not_found or (self._optional and error.code == 403):
                    if self._optional:  # nothing is wrong, and once is enough
                        level = logging.DEBUG if self.served is False else logging.INFO
                    self._not_served()
            self.errors.inc()
            _log.log(level, "watch of %s: %s; again in %.1f s", self.resource, error or "ended at once", delay)
            await asyncio.sleep(delay)

    async def _once(self) -> None:
        if self._version is None:
            if self._watch_list:
                await self._list_by_watch()
                return
            await self._list_by_pages()
        await self._watch({"resourceVersion": self._version or ""})

    def _not_served(self) -> None:
        """There is no such kind (yet): where that may be, there are none of it. Asked again until there is."""
        self.served = False
        self._version = None
        if self._optional:
            self._heard_something()
            self.cache.replace((), namespace=self._selection.namespace)
            self._synced.set()

    async def _list_by_watch(self) -> None:
        """Ask for what is there and what will come in one stream (WatchList)."""
        self._collecting = {}
        began = self._clock()
        try:
            async with asyncio.timeout(self._options.watch_list_patience) as patience:
                query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
                await self._watch(query, on_listed=lambda: patience.reschedule(None))
        except ApiError as error:
            if error.code not in (400, 422) or self._collecting is None:
                raise
            _log.info("the server refuses WatchList of %s (%s): listing instead", self.resource, error)
            self._watch_list = False
        except TimeoutError:
            if self.heard < began:  # not even a word: that is the network, not an old server
                raise Unreachable(f"WATCH {self.resource}: not a byte of the initial objects") from None
            _log.info("no end of the initial %s in sight: listing instead", self.resource)
            self._watch_list = False
        finally:
            self._collecting = None
        if not self._watch_list:
            await self._once()

    async def _list_by_pages(self) -> None:
        pages = await self._client.pages(self.resource, self._kind, self._selection, limit=self._options.page)
        self._heard_something()
        items: dict[Key, T] = {}
        for page in pages:
            self._take_page(page, items)
            await asyncio.sleep(0)  # thousands of objects: let others have their turn
        self._listed(items, pages[-1].version)

    def _take_page(self, page: Page[T], items: dict[Key, T]) -> None:
        for item in page.items:
            key = item.metadata.key
            self._readable(key)
            items[key] = item
        for raw in page.unreadable:
            self._note_undecodable(raw)
            known = self._known(raw)
            if known is not None:
                items[known.metadata.key] = known

    def _listed(self, items: dict[Key, T], version: str) -> None:
        self.lists.inc()
        self.cache.replace(items.values(), namespace=self._selection.namespace, initial=not self.synced)
        self._version = version
        self.served = True
        self._synced.set()

    async def _watch(self, query: dict[str, str], on_listed: Callable[[], None] = lambda: None) -> None:
        # The server ends each watch in its own time; asking for different times spreads the reconnects.
        asked = {"timeoutSeconds": str(random.randint(290, 590)), **query}  # noqa: S311 - no secret
        lines = LineSplitter()
        stream = self._client.watch(self.resource, self._selection, asked, silence=self._options.silence)
        async with contextlib.aclosing(stream) as pieces:  # type: ignore[type-var]  # it is a generator
            async for data in pieces:
                self._heard_something()
                for line in lines.feed(data):
                    if self._take(line):
                        on_listed()

    def _heard_something(self) -> None:
        self.heard = self._clock()

    def _take(self, line: bytes) -> bool:
        """Follow one event; True when it completed the initial objects."""
        self._events.inc()
        try:
            quick = self._decode_event(line)
        except msgspec.ValidationError:
            quick = None
        if quick is not None and quick.type not in (EventType.BOOKMARK, EventType.ERROR):
            self._readable(quick.object.metadata.key)
            self._take_object(quick.type, quick.object)
            return False
        event = decode_event(line)
        if event.type is EventType.ERROR:
            raise error_of(event, str(self.resource))
        if event.type is EventType.BOOKMARK:
            bookmark = decode_bookmark(event.object)
            if self._collecting is None:
                self._advance(bookmark.metadata.resource_version)
                return False
            if bookmark.ends_initial_events:
                collected, self._collecting = self._collecting, None
                self._listed(collected, bookmark.metadata.resource_version)
                return True
            return False
        self._take_undecodable(event.type, event.object)
        return False

    def _take_object(self, what: EventType, item: T) -> None:
        key = item.metadata.key
        if self._collecting is not None:
            if what is EventType.DELETED:
                self._collecting.pop(key, None)
            else:
                self._collecting[key] = item
        elif not self._advance(item.metadata.resource_version):
            self.stale.inc()  # seen already, or older than what was: an echo must not raise the dead
        elif what is EventType.DELETED:
            self.cache.remove(key, item)
        else:
            self.cache.put(item)

    def _take_undecodable(self, what: EventType, raw: msgspec.Raw) -> None:
        """Keep what we know of it, as long as it is the same object and exists."""
        self._note_undecodable(raw)
        metadata, known = _metadata(raw).metadata, self._known(raw)
        if self._collecting is not None:
            if known is not None and what is not EventType.DELETED:
                self._collecting[metadata.key] = known
        elif self._advance(metadata.resource_version) and (known is None or what is EventType.DELETED):
            self.cache.remove(metadata.key)
        if what is EventType.DELETED:
            self.undecodable.pop(metadata.key, None)

    def _advance(self, version: str) -> bool:
        """Note how far we are; False when we were there already. Versions of one kind come in their order."""
        if self._version is not None and not newer(version, self._version):
            return False
        self._version = version
        return True

    def _note_undecodable(self, raw: msgspec.Raw) -> None:
        """One odd object must not blind us to the others; but somebody should know."""
        try:
            self._decode(raw)
        except msgspec.ValidationError as error:
            key = _metadata(raw).metadata.key
            if self.undecodable.get(key) != str(error):
                _log.warning("%s %s cannot be read: %s", self.resource, key, error)
            self.undecodable[key] = str(error)

    def _readable(self, key: Key) -> None:
        if self.undecodable:
            self.undecodable.pop(key, None)

    def _known(self, raw: msgspec.Raw) -> T | None:
        """What the cache has of an object that cannot be read now: it exists, so it is not to vanish."""
        metadata = _metadata(raw).metadata
        known = self.cache.get(metadata.key)
        return known if known is not None and known.metadata.uid == metadata.uid else None


_metadata: Callable[[msgspec.Raw], MetadataOnly] = msgspec.json.Decoder(MetadataOnly).decode
