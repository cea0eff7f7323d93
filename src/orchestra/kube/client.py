"""The verbs of the API, typed: structs (or plain JSON values) in, structs of the caller's choice out."""

import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from orchestra.kube.config import Access
from orchestra.kube.errors import ApiError
from orchestra.kube.limits import Limits
from orchestra.kube.listing import EVERYTHING, Page, Selection, read_page
from orchestra.kube.metrics import Metrics
from orchestra.kube.objects import PODS, Key, MetadataOnly, Resource
from orchestra.kube.transport import REQUEST_SECONDS, SILENCE_SECONDS, Answer, Method, Transport, with_query

Body = Any
"""Whatever msgspec encodes: a struct, a dictionary, or bytes that are JSON already."""
A = TypeVar("A")
PatchKind = Literal["merge", "strategic", "json"]

_PATCH_TYPES: Mapping[PatchKind, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}
_WARNING = re.compile(r'^\d{3} \S+ "((?:[^"\\]|\\.)*)"')
_MOST_WARNINGS = 1000
_ONLY_METADATA = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"}
"""Who reads nothing else is sent nothing else: half the bytes of a created pod."""
_log = logging.getLogger(__name__)


class _ServedKind(msgspec.Struct):
    name: str
    kind: str


class _ServedKinds(msgspec.Struct):
    resources: list[_ServedKind]


class Client:
    """One API server for any number of controllers. Needs a running event loop; close it at the end."""

    def __init__(
        self,
        access: Access,
        *,
        manager: str,
        limits: Limits | None = None,
        metrics: Metrics | None = None,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        self.access = access
        self.manager = manager
        """Our name as a field manager, and as a user agent."""
        self.transport = Transport(
            access, limits=limits, user_agent=manager, metrics=metrics, request_seconds=request_seconds
        )
        self.on_warning: Callable[[str], None] = lambda text: _log.warning("the API server warns: %s", text)
        """Called once for each different text of a Warning header."""
        self._warnings: set[str] = set()
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
        self._encode = msgspec.json.Encoder().encode

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.transport.close()

    # ---- reading

    async def get(self, resource: Resource, key: Key, kind: type[A]) -> A:
        """Read one object."""
        return await self._typed("GET", resource.path(key), kind)

    async def find(self, resource: Resource, key: Key, kind: type[A]) -> A | None:
        """Read one object, or None when there is none."""
        try:
            return await self.get(resource, key, kind)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def page(
        self, resource: Resource, kind: type[A], selection: Selection, *, limit: int = 500, after: str = ""
    ) -> Page[A]:
        """One page of a consistent LIST; `limit=0` asks for all at once. 410 when `after` is too old."""
        query = selection.query()
        if limit:
            query["limit"] = str(limit)
        if after:
            query["continue"] = after
        answer = await self._request("GET", with_query(resource.collection(selection.namespace), query))
        return read_page(answer.body, kind)

    async def list_all(
        self, resource: Resource, kind: type[A], selection: Selection = EVERYTHING, *, limit: int = 500
    ) -> list[A]:
        """All of them, page by page. One that cannot be decoded is an error here."""
        pages = await self.pages(resource, kind, selection, limit=limit)
        for page in pages:
            for raw in page.unreadable:
                self.decoder(kind).decode(raw)  # raises, and says why
        return [item for page in pages for item in page.items]

    async def pages(
        self, resource: Resource, kind: type[A], selection: Selection, *, limit: int = 500
    ) -> Sequence[Page[A]]:
        """All pages of a LIST. Where the server forgets it half-way (410), it is asked again for all at once."""
        pages = [await self.page(resource, kind, selection, limit=limit)]
        try:
            while pages[-1].after:
                pages.append(await self.page(resource, kind, selection, limit=limit, after=pages[-1].after))
        except ApiError as error:
            if not error.gone:
                raise
            return [await self.page(resource, kind, selection, limit=0)]
        return pages

    def watch(
        self, resource: Resource, selection: Selection, query: Mapping[str, str], *, silence: float = SILENCE_SECONDS
    ) -> AsyncIterator[bytes]:
        """The bytes of a watch; see `watch.py` for what to do with them."""
        asked = {"watch": "true", "allowWatchBookmarks": "true", **selection.query(), **query}
        return self.transport.stream(with_query(resource.collection(selection.namespace), asked), silence=silence)

    def logs(
        self,
        key: Key,
        *,
        container: str = "",
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
        since: str = "",
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]:
        """The log of a container as the kubelet has it, in pieces that are not lines. Close it (`aclosing`).

        `since` is a time as Kubernetes writes it, in whole seconds.
        """
        query = {"container": container} if container else {}
        query |= {"follow": "true"} if follow else {}
        query |= {"tailLines": str(tail)} if tail is not None else {}
        query |= {"previous": "true"} if previous else {}
        query |= {"sinceTime": since} if since else {}
        query |= {"timestamps": "true"} if timestamps else {}
        silence = None if follow else REQUEST_SECONDS  # a rank may well say nothing for an hour
        return self.transport.stream(with_query(PODS.path(key, "log"), query), silence=silence)

    async def served(self, resource: Resource) -> bool:
        """Whether this server knows this kind in this version now (a CRD may come and go)."""
        try:
            known = await self._typed("GET", resource.root, _ServedKinds)
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return any(one.name == resource.plural and one.kind == resource.kind for one in known.resources)

    # ---- writing

    async def create(
        self, resource: Resource, namespace: str, body: Body, kind: type[A], *, dry_run: bool = False
    ) -> A:
        """POST. Never sent twice when no answer came: the object may be there then."""
        query = {"fieldManager": self.manager, **({"dryRun": "All"} if dry_run else {})}
        target = with_query(resource.collection(namespace), query)
        return await self._typed("POST", target, kind, body, idempotent=False)

    async def replace(self, resource: Resource, key: Key, body: Body, kind: type[A], *, urgent: bool = False) -> A:
        """PUT. Carry a resourceVersion in the body, or it overwrites whatever there is."""
        target = with_query(resource.path(key), {"fieldManager": self.manager})
        return await self._typed("PUT", target, kind, body, idempotent=False, urgent=urgent)

    async def apply(
        self,
        resource: Resource,
        key: Key,
        body: Body,
        kind: type[A],
        *,
        subresource: str = "",
        force: bool = True,
        dry_run: bool = False,
    ) -> A:
        """Server-side apply. Creates what is not there unless the body has a `metadata.uid`; see `writes.py`."""
        query = {"fieldManager": self.manager, "force": "true" if force else "false"}
        query |= {"dryRun": "All"} if dry_run else {}
        target = with_query(resource.path(key, subresource), query)
        return await self._typed("PATCH", target, kind, body, content_type="application/apply-patch+yaml")

    async def patch(
        self,
        resource: Resource,
        key: Key,
        body: Body,
        kind: type[A],
        *,
        how: PatchKind = "merge",
        subresource: str = "",
    ) -> A:
        """Merge, strategic merge or JSON patch. A JSON patch is not retried: its tests fail the second time."""
        target = with_query(resource.path(key, subresource), {"fieldManager": self.manager})
        return await self._typed("PATCH", target, kind, body, content_type=_PATCH_TYPES[how], idempotent=how != "json")

    async def patch_status(
        self, resource: Resource, key: Key, body: Body, kind: type[A], *, how: PatchKind = "merge"
    ) -> A:
        """The same on the status. The server may ignore a UID in a merge patch here: test it in a JSON patch."""
        return await self.patch(resource, key, body, kind, how=how, subresource="status")

    async def delete(
        self,
        resource: Resource,
        key: Key,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] = "Background",
    ) -> bool:
        """Ask for its deletion; False when there was nothing (or, with a UID, only another one) to delete."""
        options: dict[str, object] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            await self._request("DELETE", resource.path(key), self._encode(options))
        except ApiError as error:
            if error.not_found or (uid is not None and error.conflict):
                return False
            raise
        return True

    async def create_urgently(self, resource: Resource, namespace: str, body: Body) -> MetadataOnly:
        """POST past all limits and guards: for leases."""
        return await self._typed(
            "POST", resource.collection(namespace), MetadataOnly, body, idempotent=False, urgent=True
        )

    async def get_urgently(self, resource: Resource, key: Key, kind: type[A]) -> A:
        """GET past all limits: for leases."""
        return await self._typed("GET", resource.path(key), kind, urgent=True)

    # ---- one request

    def decoder(self, kind: type[A]) -> "msgspec.json.Decoder[A]":
        """The decoder of a type; making one is not cheap, so they are kept."""
        known = self._decoders.get(kind)
        if known is None:
            known = self._decoders[kind] = msgspec.json.Decoder(kind)
        return known

    async def _typed(
        self,
        method: Method,
        target: str,
        kind: type[A],
        body: Body = None,
        *,
        content_type: str = "application/json",
        idempotent: bool = True,
        urgent: bool = False,
    ) -> A:
        data = body if body is None or isinstance(body, bytes) else self._encode(body)
        headers = _ONLY_METADATA if kind is MetadataOnly else None
        answer = await self._request(method, target, data, content_type, idempotent, urgent, headers)
        return self.decoder(kind).decode(answer.body)

    async def _request(
        self,
        method: Method,
        target: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        idempotent: bool = True,
        urgent: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        answer = await self.transport.request(
            method, target, body=body, content_type=content_type, idempotent=idempotent, urgent=urgent, headers=headers
        )
        for header in answer.warnings:
            self._warn(header)
        return answer

    def _warn(self, header: str) -> None:
        found = _WARNING.match(header)
        text = re.sub(r"\\(.)", r"\1", found.group(1)) if found else header
        if text not in self._warnings and len(self._warnings) < _MOST_WARNINGS:
            self._warnings.add(text)
            self.on_warning(text)
