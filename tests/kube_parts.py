"""What the tests of `orchestra.kube` share: small structs, waiting inside an event loop, a server that misbehaves."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from orchestra.kube.backoff import Backoff
from orchestra.kube.cache import Cache, Change
from orchestra.kube.client import Client
from orchestra.kube.config import load_kubeconfig
from orchestra.kube.listing import EVERYTHING, Selection
from orchestra.kube.objects import CONFIG_MAPS, Metadata, OwnerReference, Resource, Slim
from orchestra.kube.reflector import Reflector, ReflectorOptions
from testbed.api import Json

A = TypeVar("A")

QUICK = ReflectorOptions(backoff=Backoff(first=0.05, longest=0.5))


class ConfigMap(Slim, frozen=True):
    """The kind most tests use: nothing else in a cluster cares about it."""

    metadata: Metadata
    data: dict[str, str] | None = None


class PodStatus(Slim, frozen=True):
    phase: str = "Unknown"


class Pod(Slim, frozen=True):
    metadata: Metadata
    status: PodStatus = PodStatus()


def a_config_map(name: str, *, uid: str = "u", version: int = 1, owner: str | None = None, **data: str) -> ConfigMap:
    """As it would come out of a cache."""
    owners = (
        () if owner is None else (OwnerReference(api_version="v1", kind="X", name="x", uid=owner, controller=True),)
    )
    metadata = Metadata(name=name, namespace="default", uid=uid, resource_version=str(version), owner_references=owners)
    return ConfigMap(metadata=metadata, data=data or None)


def manifest(name: str, *, owner: Json | None = None, labels: dict[str, str] | None = None, **data: str) -> Json:
    """A ConfigMap to be sent; the owner, where given, controls it."""
    body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    if labels:
        body["metadata"]["labels"] = labels
    if owner is not None:
        body["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ]
    return body


def pod_manifest(name: str) -> Json:
    container = {"name": "main", "image": "none"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def connect(kubeconfig: Path) -> Client:
    """A client; close it."""
    return Client(load_kubeconfig(kubeconfig), manager="kube-tests")


async def eventually(what: str, condition: Callable[[], A], *, timeout: float = 60.0) -> A:
    """Ask until the answer is true."""
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s in vain: {what} (last answer: {answer!r})")
        await asyncio.sleep(0.02)
    return answer


class Seen:
    """A listener that remembers, in words: `+a`, `~a`, `-a`."""

    def __init__(self, cache: Cache[ConfigMap]) -> None:
        self.words: list[str] = []
        cache.listen(self._hear)

    def _hear(self, change: Change[ConfigMap]) -> None:
        sign = "+" if change.old is None else "-" if change.new is None else "~"
        self.words.append(f"{sign}{change.key.name}")


@contextlib.asynccontextmanager
async def reflecting(
    client: Client,
    selection: Selection = EVERYTHING,
    options: ReflectorOptions = QUICK,
    resource: Resource = CONFIG_MAPS,
) -> AsyncIterator[Reflector[ConfigMap]]:
    """A running reflector of ConfigMaps with a cache of its own."""
    reflector = Reflector(client, resource, ConfigMap, Cache(), selection=selection, options=options)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def misbehaving_server(handler: Handler) -> AsyncIterator[str]:
    """An HTTP server that answers as the test wants; yields its URL."""
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
