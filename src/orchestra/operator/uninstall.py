"""Taking the operator out of a cluster without leaving anything that can never end.

A finalizer of ours that outlives the operator would keep its object, and its namespace, for ever: so nothing is removed
while one is there, unless the user insists.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from orchestra.api.engine import EngineError
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError
from orchestra.kube.listing import Selection
from orchestra.kube.objects import NAMESPACES, PODS, Key, Metadata, MetadataOnly, Resource, Slim
from orchestra.operator.install import SELECTOR, manifests
from orchestra.operator.kinds import JOBS, QUEUES, JobObject
from orchestra.operator.kinds_installed import CRDS, DEPLOYMENTS, key_of, named, resource_of
from orchestra.operator.manifests import Installation, service_monitor
from orchestra.operator.rights import NAME, NAMESPACE
from orchestra.plan.status import FINISHED

Json = dict[str, Any]
Say = Callable[[str], None]

_OURS = "torchrun.ai/"
_PATIENCE = 120.0
_MOST_NAMED = 5


@dataclass(frozen=True)
class Remains:
    """What of the users' is still there."""

    jobs: list[Metadata] = field(default_factory=list)
    unfinished: list[Metadata] = field(default_factory=list)
    queues: list[Metadata] = field(default_factory=list)

    def held(self) -> list[tuple[Resource, Metadata]]:
        """Objects with a finalizer that only the operator removes."""
        everything = [(JOBS, one) for one in self.jobs] + [(QUEUES, one) for one in self.queues]
        return [(kind, one) for kind, one in everything if any(name.startswith(_OURS) for name in one.finalizers)]

    def obstacles(self, *, everything: bool) -> list[str]:
        """Why it must not go now."""
        reasons = []
        if everything and self.jobs:
            reasons.append(f"{len(self.jobs)} jobs would be deleted: {_some(self.jobs)}")
        elif self.unfinished:
            reasons.append(
                f"{len(self.unfinished)} jobs are not finished: {_some(self.unfinished)}. "
                "With --force they go on without anybody to look after them."
            )
        if everything and self.queues:
            reasons.append(f"{len(self.queues)} queues would be deleted: {_some(self.queues)}")
        held = [one for _, one in self.held()]
        if held and not everything:
            reasons.append(
                f"{len(held)} objects have finalizers that only the operator removes: {_some(held)}. Without it these, "
                "and their namespaces, could never be deleted. With --force the finalizers go, and the objects stay."
            )
        return reasons


async def uninstall(
    client: Client,
    say: Say,
    *,
    namespaces: tuple[str, ...] = (),
    everything: bool = False,
    force: bool = False,
    dry_run: bool = False,
) -> None:
    """Removes the operator and its rights; `everything` also the CRDs, so every job and queue, and the namespace.

    EngineError, with the names, when something of the users' is in the way and `force` is not given.
    """
    remains = await look(client)
    obstacles = remains.obstacles(everything=everything)
    if obstacles and not force:
        raise EngineError("\n".join([*obstacles, "Delete them first, or use --force."]))
    served = namespaces or await _served_namespaces(client)
    documents = _to_delete(Installation(namespaces=served))
    if dry_run:
        _tell_plan(say, documents, remains, everything=everything)
        return
    if everything:  # while the operator is there: it ends them in good order
        await _delete_all(client, say, remains)
    await _delete(client, say, documents[0])
    await _wait("the operator's pods end", lambda: _operator_gone(client))
    for kind, one in (await look(client)).held():
        await _release(client, say, kind, one)
    for document in documents[1:]:
        await _delete(client, say, document)
    if everything:
        await _delete_definitions(client, say)


async def look(client: Client) -> Remains:
    """What there is of jobs and queues, in all namespaces."""
    jobs = await _list(client, JOBS, JobObject)
    queues = await _list(client, QUEUES, MetadataOnly)
    unfinished = [one.metadata for one in jobs if one.read_status().phase not in FINISHED]
    return Remains([one.metadata for one in jobs], unfinished, [one.metadata for one in queues])


# ---- steps


async def _list(client: Client, resource: Resource, kind: type[Any]) -> list[Any]:
    try:
        return await client.list_all(resource, kind)
    except ApiError as error:
        if error.not_found:  # no such kind: the CRD is gone already
            return []
        raise EngineError(f"{resource}: {error.refusal.message}") from error


def _to_delete(made: Installation) -> list[Json]:
    """The operator's Deployment first, then its rights and the rest; never definitions, namespaces or claims."""
    documents = [*manifests(replace(made, workspace_store=True)), service_monitor()]
    stays = ("Namespace", "CustomResourceDefinition", "PersistentVolumeClaim")
    kept = [one for one in documents if one["kind"] not in stays]
    return sorted(kept, key=lambda one: one["kind"] != "Deployment")


def _tell_plan(say: Say, documents: list[Json], remains: Remains, *, everything: bool) -> None:
    for document in documents:
        say(f"would delete {named(document)}")
    for kind, one in remains.held():
        say(f"would clear the finalizers of {kind.kind} {one.key}")
    if everything:
        say(f"would delete {len(remains.jobs)} jobs, {len(remains.queues)} queues, the CRDs, Namespace {NAMESPACE}")


async def _delete(client: Client, say: Say, document: Json) -> None:
    resource = resource_of(document)
    try:
        if await client.delete(resource, key_of(document)):
            say(f"deleted    {named(document)}")
    except ApiError as error:
        raise EngineError(f"{named(document)}: {error.refusal.message}") from error


async def _delete_all(client: Client, say: Say, remains: Remains) -> None:
    """Jobs before queues: a queue's finalizer waits for its jobs."""
    for kind, objects in ((JOBS, remains.jobs), (QUEUES, remains.queues)):
        for one in objects:
            if await client.delete(kind, one.key, uid=one.uid):
                say(f"deleted    {kind.kind} {one.key}")


async def _release(client: Client, say: Say, kind: Resource, one: Metadata) -> None:
    kept = [name for name in one.finalizers if not name.startswith(_OURS)]
    body = {"metadata": {"finalizers": kept, "uid": one.uid}}
    try:
        await client.patch(kind, one.key, body, MetadataOnly)
    except ApiError as error:
        if not (error.not_found or error.conflict):
            raise EngineError(f"{kind.kind} {one.key}: {error.refusal.message}") from error
        return
    say(f"cleared    the finalizers of {kind.kind} {one.key}")


async def _delete_definitions(client: Client, say: Say) -> None:
    for kind in (JOBS, QUEUES):
        await _wait(f"the last {kind} go", functools.partial(_none_left, client, kind))
        if await client.delete(CRDS, Key("", str(kind))):
            say(f"deleted    CustomResourceDefinition {kind}")
    if await client.delete(NAMESPACES, Key("", NAMESPACE)):
        say(f"deleted    Namespace {NAMESPACE}")


async def _wait(what: str, done: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + _PATIENCE
    while not await done():
        if time.monotonic() > end:
            raise EngineError(f"waited {_PATIENCE:.0f} s in vain: {what}")
        await asyncio.sleep(0.3)


async def _operator_gone(client: Client) -> bool:
    pods = await client.list_all(PODS, MetadataOnly, Selection(namespace=NAMESPACE, labels=SELECTOR))
    return not pods


async def _none_left(client: Client, kind: Resource) -> bool:
    return not await _list(client, kind, MetadataOnly)


class _Container(Slim, frozen=True):
    args: tuple[str, ...] = ()


class _PodSpec(Slim, frozen=True):
    containers: tuple[_Container, ...] = ()


class _Template(Slim, frozen=True):
    spec: _PodSpec


class _DeploymentSpec(Slim, frozen=True):
    template: _Template


class _Deployment(Slim, frozen=True):
    spec: _DeploymentSpec


async def _served_namespaces(client: Client) -> tuple[str, ...]:
    """Those that the installed operator was told to serve; none when it serves all, or is not there."""
    found = await client.find(DEPLOYMENTS, Key(NAMESPACE, NAME), _Deployment)
    if found is None:
        return ()
    words = [word for container in found.spec.template.spec.containers for word in container.args]
    named_there = [word.partition("=")[2] for word in words if word.startswith("--namespaces=")]
    return tuple(name for text in named_there for name in text.split(",") if name)


def _some(objects: list[Metadata]) -> str:
    names = ", ".join(str(one.key) for one in objects[:_MOST_NAMED])
    return names + (", ..." if len(objects) > _MOST_NAMED else "")
