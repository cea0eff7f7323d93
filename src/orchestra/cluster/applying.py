"""Applying rendered objects: all of them are tried before one is written, and nobody else's is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orchestra.api.engine import EngineError
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError
from orchestra.kube.objects import Key, MetadataOnly, Resource

Json = dict[str, Any]
_MANAGED = "app.kubernetes.io/managed-by"
_NEED_OTHERS = ("TrainJob",)
"""Their webhooks refuse them, even for trying, until the objects that they name are there."""


async def apply_rendered(client: Client, namespace: str, objects: Sequence[Json], say: Callable[[str], None]) -> None:
    """Creates or updates them in order. Raises before anything is written when one would be refused.

    What can be tried only when the others are there comes last: when it is refused, what was created goes again.
    """
    plan = [(await _resource(client, one), one) for one in objects]
    for resource, one in plan:
        await _refuse_a_strangers(client, resource, namespace, one)
        if one["kind"] not in _NEED_OTHERS:
            await _send(client, resource, namespace, one, dry_run=True)
    created: list[tuple[Resource, Json]] = []
    for resource, one in plan:
        try:
            done = await _send(client, resource, namespace, one)
        except ApiError:
            for its_resource, other in reversed(created):
                await client.delete(its_resource, Key(namespace, other["metadata"]["name"]))
            raise
        if done == "created" and not one.get("immutable"):  # the agent may be another job's by now
            created.append((resource, one))
        say(f"{one['kind'].lower()}/{one['metadata']['name']} {done}")


async def _refuse_a_strangers(client: Client, resource: Resource, namespace: str, one: Json) -> None:
    there = await client.find(resource, Key(namespace, one["metadata"]["name"]), MetadataOnly)
    if there is None:
        return
    ours = one["metadata"].get("labels", {}).get(_MANAGED)
    if (there.metadata.labels or {}).get(_MANAGED) != ours:
        name = f"{one['kind']} {one['metadata']['name']}"
        raise EngineError(f"there is a {name} that `render` did not write; it is left as it is. Rename the job")


async def _send(client: Client, resource: Resource, namespace: str, one: Json, *, dry_run: bool = False) -> str:
    key = Key(namespace, one["metadata"]["name"])
    body = one | {"metadata": one["metadata"] | {"namespace": namespace}}
    try:
        await client.create(resource, namespace, body, MetadataOnly, dry_run=dry_run)
        return "created"
    except ApiError as error:
        if not error.already_exists:
            raise
    if one.get("immutable"):
        return "unchanged"  # named by its content
    if dry_run:
        return ""
    await client.apply(resource, key, body, MetadataOnly)
    return "configured"


async def _resource(client: Client, one: Json) -> Resource:
    group, _, version = one["apiVersion"].rpartition("/")
    plural = _PLURALS.get(one["kind"], one["kind"].lower() + "s")
    resource = Resource(group, version, one["kind"], plural)
    if group and not await client.served(resource):
        raise EngineError(
            f"this cluster serves no {one['kind']} ({one['apiVersion']}): its controller is not installed"
        )
    return resource


_PLURALS = {"NetworkPolicy": "networkpolicies"}
