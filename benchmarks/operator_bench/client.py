"""A client that posts jobs and sees pods appear: one process, one clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from orchestra.kube.config import load_kubeconfig
from orchestra.kube.identity import Credential
from orchestra.kube.transport import tls_context
from orchestra.kube.watch import LineSplitter
from testbed.control_plane import ControlPlane

Json = dict[str, Any]
now = time.perf_counter


class _Meta(msgspec.Struct):
    labels: dict[str, str] = {}
    resourceVersion: str = ""  # noqa: N815 -- Kubernetes' name


class _Object(msgspec.Struct):
    metadata: _Meta


class _Event(msgspec.Struct):
    type: str
    object: _Object


class _List(msgspec.Struct):
    metadata: _Meta
    items: list[Any] = []


class BenchClient:
    """Warm connections for posts, one watch of a namespace's pods."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self._access = load_kubeconfig(plane.admin_kubeconfig)
        self.pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self.seen: list[float] = []
        self._counts: Callable[[dict[str, str]], bool] = lambda _labels: True
        self._target = 0
        self._reached = asyncio.Event()

    async def __aenter__(self) -> BenchClient:
        tls = tls_context(self._access, Credential())
        headers = {"Authorization": f"Bearer {self._access.token}"}
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        forever = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(headers=headers, connector=connector, timeout=forever)
        await self.warm(32)
        started = asyncio.Event()
        self._watching = asyncio.create_task(self._watch(started))
        await started.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.cancel()
        await asyncio.wait({self._watching})
        await self._session.close()

    def expect(self, target: int, counts: Callable[[dict[str, str]], bool] = lambda _labels: True) -> None:
        """From now on count pods whose labels are so, up to this many."""
        self.seen, self._target, self._counts = [], target, counts
        self._reached.clear()

    async def reached(self, patience: float) -> float:
        """When the last of them was seen."""
        try:
            async with asyncio.timeout(patience):
                await self._reached.wait()
        except TimeoutError:
            raise RuntimeError(f"{len(self.seen)} of {self._target} pods after {patience:.0f} s") from None
        return self.seen[self._target - 1]

    async def post(self, path: str, body: bytes) -> None:
        """Create one object."""
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._access.server + path, data=body, headers=headers) as answer:
            content = await answer.read()
            if answer.status != 201:
                raise RuntimeError(f"POST {path}: {answer.status}: {content[:300]!r}")

    async def post_all(self, posts: Sequence[tuple[str, bytes]], width: int = 32) -> None:
        """Create many, so many at a time."""
        waiting = list(reversed(posts))

        async def work() -> None:
            while waiting:
                await self.post(*waiting.pop())

        await asyncio.gather(*(work() for _ in range(min(width, len(posts)))))

    async def get(self, path: str) -> bytes:
        """Read."""
        async with self._session.get(self._access.server + path) as answer:
            return await answer.read()

    async def clear(self, *collections: str, patience: float = 300.0) -> None:
        """Delete all of these, and wait until they and all pods are gone."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        for path in collections:
            async with self._session.delete(self._access.server + path, json=options) as answer:
                await answer.read()
        end = now() + patience
        for path in (*collections, self.pods_path):
            while msgspec.json.decode(await self.get(f"{path}?limit=1"), type=_List).items:
                if now() > end:
                    raise RuntimeError(f"{path} is not empty after {patience:.0f} s")
                await asyncio.sleep(0.25)

    async def warm(self, connections: int) -> None:
        """Open connections, so that no measurement pays for them."""

        async def one() -> None:
            await self.get("/version")
            await asyncio.sleep(0.05)

        await asyncio.gather(*(one() for _ in range(connections)))

    async def _watch(self, started: asyncio.Event) -> None:
        version = msgspec.json.decode(await self.get(f"{self.pods_path}?limit=1"), type=_List).metadata.resourceVersion
        decode = msgspec.json.Decoder(_Event).decode
        while True:
            url = f"{self._access.server}{self.pods_path}?watch=1&resourceVersion={version}"
            async with self._session.get(url) as answer:
                started.set()
                lines = LineSplitter()
                async for data in answer.content.iter_any():
                    moment = now()
                    for line in lines.feed(data):
                        event = decode(line)
                        version = event.object.metadata.resourceVersion
                        if event.type == "ADDED" and self._counts(event.object.metadata.labels):
                            self.seen.append(moment)
                    if 0 < self._target <= len(self.seen):
                        self._reached.set()


def encoded(body: Json) -> bytes:
    """A body, ready to be sent."""
    return msgspec.json.encode(body)
