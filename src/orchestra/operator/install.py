"""Putting the operator into a cluster and waiting until it works. Applying twice changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from orchestra.api.crd import job_crd, queue_crd
from orchestra.api.engine import EngineError
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError
from orchestra.kube.listing import Selection
from orchestra.kube.objects import PODS, Key, MetadataOnly, Slim
from orchestra.operator.kinds import PodObject
from orchestra.operator.kinds_installed import CRDS, DEPLOYMENTS, SERVICE_MONITORS, key_of, named, resource_of
from orchestra.operator.manifests import (
    LABELS,
    Installation,
    deployment_manifests,
    rbac_manifests,
    service_monitor,
)
from orchestra.operator.rights import NAME, NAMESPACE
from orchestra.operator.workspace_store import workspace_manifests

Json = dict[str, Any]
Say = Callable[[str], None]

_LOOK_SECONDS = 0.5
SELECTOR = ",".join(f"{name}={value}" for name, value in LABELS.items())


def manifests(made: Installation) -> list[Json]:
    """Everything but the ServiceMonitor, in an order in which each finds what it needs. The same as in config/."""
    documents = [*rbac_manifests(made), job_crd(), queue_crd(), *deployment_manifests(made)]
    documents += workspace_manifests(made.image) if made.workspace_store else []
    return list({named(document): document for document in documents}.values())


async def install(client: Client, made: Installation, say: Say, *, dry_run: bool = False) -> None:
    """Applies it all. EngineError when the server refuses something; what was applied before that stays."""
    for document in await _wanted(client, made):
        done = await _apply(client, document, dry_run=dry_run)
        say(f"{done:<10} {named(document)}")
        if document["kind"] == "Deployment" and not dry_run:
            await _wait_for_crds(client)


async def wait_ready(client: Client, made: Installation, say: Say, *, timeout: float) -> None:
    """Until every replica is ready; tells what each waits for. EngineError after `timeout` seconds."""
    end = time.monotonic() + timeout
    before = ""
    while True:
        ready, words = await _readiness(client, made)
        if words != before:
            say(words)
            before = words
        if ready:
            return
        if time.monotonic() > end:
            where = f"kubectl -n {NAMESPACE}"
            raise EngineError(
                f"the operator is not ready after {timeout:.0f} s: {words}\n"
                f"look with: {where} describe pods; {where} logs deployment/{NAME}"
            )
        await asyncio.sleep(_LOOK_SECONDS)


# ---- applying


async def _wanted(client: Client, made: Installation) -> list[Json]:
    monitored = await client.served(SERVICE_MONITORS)
    return [*manifests(made), *([service_monitor()] if monitored else [])]


async def _apply(client: Client, document: Json, *, dry_run: bool) -> str:
    resource, key = resource_of(document), key_of(document)
    try:
        before = await client.find(resource, key, MetadataOnly)
        after = await client.apply(resource, key, document, MetadataOnly, dry_run=dry_run)
    except ApiError as error:
        if dry_run and error.not_found:
            return "created"  # its namespace would be there by then
        raise EngineError(_refused(document, error)) from error
    if before is None:
        return "created"
    return "unchanged" if before.metadata.resource_version == after.metadata.resource_version else "configured"


def _refused(document: Json, error: ApiError) -> str:
    mend = ""
    if error.code == 403:
        mend = "\nInstalling needs rights over the whole cluster (CRDs, ClusterRoles): ask one who has them."
    return f"{named(document)}: {error.refusal.message}{mend}"


class _CrdCondition(Slim, frozen=True):
    type: str
    status: str


class _CrdStatus(Slim, frozen=True):
    conditions: tuple[_CrdCondition, ...] | None = None


class _Crd(Slim, frozen=True):
    status: _CrdStatus = _CrdStatus()


async def _wait_for_crds(client: Client, patience: float = 60.0) -> None:
    end = time.monotonic() + patience
    for crd in (job_crd(), queue_crd()):
        key = Key("", crd["metadata"]["name"])
        while True:
            found = await client.get(CRDS, key, _Crd)
            if any(c.type == "Established" and c.status == "True" for c in found.status.conditions or ()):
                break
            if time.monotonic() > end:
                raise EngineError(f"{key.name} is not established after {patience:.0f} s: kubectl describe crd {key}")
            await asyncio.sleep(0.2)


# ---- waiting


class _DeploymentStatus(Slim, frozen=True):
    observed_generation: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    replicas: int = 0


class _Deployment(Slim, frozen=True):
    metadata: Any
    status: _DeploymentStatus = _DeploymentStatus()


async def _readiness(client: Client, made: Installation) -> tuple[bool, str]:
    found = await client.get(DEPLOYMENTS, Key(NAMESPACE, NAME), _Deployment)
    status = found.status
    seen = status.observed_generation >= found.metadata.get("generation", 0)
    counts = (status.updated_replicas, status.ready_replicas, status.replicas)
    if seen and counts == (made.replicas,) * 3:
        return True, f"{made.replicas} of {made.replicas} operators are ready"
    pods = await client.list_all(PODS, PodObject, Selection(namespace=NAMESPACE, labels=SELECTOR))
    reasons = "; ".join(_reasons(pods))
    ready = min(status.ready_replicas, made.replicas)
    return False, f"{ready} of {made.replicas} operators are ready" + (f" ({reasons})" if reasons else "")


def _reasons(pods: list[PodObject]) -> Iterator[str]:
    for pod in pods:
        for container in pod.status.container_statuses:
            waiting = container.state.waiting
            if waiting is not None and waiting.reason not in ("", "ContainerCreating", "PodInitializing"):
                yield f"{pod.metadata.name}: {waiting.reason}: {waiting.message}".strip(": ")
        for condition in pod.status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False":
                yield f"{pod.metadata.name}: {condition.message}"


def as_builtins(documents: list[Json]) -> list[Json]:
    """For printing: no two places share an object, so no YAML anchors."""
    made: list[Json] = msgspec.json.decode(msgspec.json.encode(documents))
    return made
