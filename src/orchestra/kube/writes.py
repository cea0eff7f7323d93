"""Changing the world without taking what is not ours.

A child has a deterministic name and is first created by POST. When the name is taken, the owner's UID decides: ours, or
a stranger's that is left alone. Everything later (apply, delete) names the UID it means, so that an object deleted and
made again by somebody else is never hit.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from orchestra.kube.backoff import Backoff
from orchestra.kube.client import Body, Client
from orchestra.kube.errors import ApiError, KubeError
from orchestra.kube.expectations import Expectations
from orchestra.kube.objects import Key, Metadata, MetadataOnly, Resource

A = TypeVar("A")

_WIDTH = 64
_QUOTA_RACES = 10
_AGAIN = Backoff(first=0.01, longest=0.5)


class Replaced(KubeError):
    """The object we meant is gone; another one may have its name. Nothing was written."""


class NotControlled(KubeError):
    """The object is not one our owner controls. Nothing was written."""


class Child(msgspec.Struct, frozen=True):
    """An object to be created for an owner. Its body has the owner reference; nobody adds it here."""

    resource: Resource
    key: Key
    body: Body


class Created(msgspec.Struct, frozen=True):
    """It is there now, and was not before."""

    metadata: Metadata


class AlreadyOurs(msgspec.Struct, frozen=True):
    """It was there already, with our owner's UID: created before a crash, or by an answer we did not get."""

    metadata: Metadata


class NotOurs(msgspec.Struct, frozen=True):
    """A stranger has the name. It was not touched: tell the user, with this name."""

    resource: Resource
    metadata: Metadata

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.metadata.key} exists and does not belong to this object"


Outcome = Created | AlreadyOurs | NotOurs


async def create_child(
    client: Client, child: Child, *, owner_uid: str, expectations: Expectations[Any] | None = None
) -> Outcome:
    """Create it, or find out whose it is. ApiError and Unreachable as from any request."""
    if expectations is not None:
        expectations.expect_create(owner_uid, child.key)
    outcome: Outcome | None = None
    try:
        outcome = await _create_or_read(client, child, owner_uid)
    finally:
        if expectations is not None:
            if isinstance(outcome, AlreadyOurs):
                expectations.found(child.key, outcome.metadata.uid)
            elif not isinstance(outcome, Created):
                expectations.drop_create(child.key)  # if it was created all the same, the next POST will tell
    return outcome


async def _create_or_read(client: Client, child: Child, owner_uid: str) -> Outcome:
    attempt = 0
    while True:
        attempt += 1
        try:
            made = await client.create(child.resource, child.key.namespace, child.body, MetadataOnly)
            return Created(made.metadata)
        except ApiError as error:
            if error.already_exists:
                found = await client.find(child.resource, child.key, MetadataOnly)
                if found is not None:
                    ours = found.metadata.controller_uid == owner_uid
                    return AlreadyOurs(found.metadata) if ours else NotOurs(child.resource, found.metadata)
            elif not error.conflict:
                raise
            # Deleted between POST and GET, or lost a race for the namespace's quota: nothing was created.
            if attempt >= _QUOTA_RACES:
                raise
        await asyncio.sleep(_AGAIN.delay(attempt))


class Creation(msgspec.Struct, frozen=True):
    """What became of many creates. Those that were not tried are in neither list."""

    outcomes: list[Outcome]
    errors: list[tuple[Child, KubeError]]
    untried: int

    @property
    def strangers(self) -> list[NotOurs]:
        """Names that are taken."""
        return [one for one in self.outcomes if isinstance(one, NotOurs)]

    @property
    def complete(self) -> bool:
        """Whether each child is there and ours."""
        return not self.errors and not self.untried and not self.strangers


async def create_children(
    client: Client,
    children: Sequence[Child],
    *,
    owner_uid: str,
    expectations: Expectations[Any] | None = None,
    start: int = 1,
    width: int = _WIDTH,
) -> Creation:
    """Create many: `start` at a time at first, each success adds one more, up to `width`. The first failure (or
    stranger) stops what has not begun, so that a quota that is full is asked once and not 512 times.

    Start wide when a dry run has just shown that they are acceptable.
    """
    waiting = deque(children)
    outcomes: list[Outcome] = []
    errors: list[tuple[Child, KubeError]] = []
    workers = 0
    refused = False

    async def work(group: asyncio.TaskGroup) -> None:
        nonlocal workers, refused
        while waiting and not refused:
            child = waiting.popleft()
            try:
                outcome = await create_child(client, child, owner_uid=owner_uid, expectations=expectations)
            except KubeError as error:
                errors.append((child, error))
                refused = True
                return
            outcomes.append(outcome)
            refused = refused or isinstance(outcome, NotOurs)
            if workers < width and waiting and not refused:
                workers += 1
                group.create_task(work(group))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(start, width, len(waiting))):
            workers += 1
            group.create_task(work(group))
    return Creation(outcomes, errors, len(waiting))


async def together(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, object]) -> A:
    """Both at once, where neither needs the other. Neither outlives the call, and a failure of either is raised."""
    other = asyncio.create_task(second)
    try:
        made = await first
    except BaseException:
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        raise
    await other
    return made


async def apply_owned(
    client: Client, resource: Resource, current: Metadata, body: Body, kind: type[A], *, owner_uid: str
) -> A:
    """Server-side apply to an object we have seen and control. Never creates, never takes over."""
    _check_owner(resource, current, owner_uid)
    plain: dict[str, Any] = msgspec.to_builtins(body)
    body = {**plain, "metadata": {**plain.get("metadata", {}), "name": current.name, "uid": current.uid}}
    try:
        return await client.apply(resource, current.key, body, kind)
    except ApiError as error:
        if means_another(error):
            raise Replaced(str(error)) from error
        raise


async def delete_owned(
    client: Client,
    resource: Resource,
    current: Metadata,
    *,
    owner_uid: str,
    grace_seconds: int | None = None,
    expectations: Expectations[Any] | None = None,
) -> bool:
    """Delete an object we have seen and control, and no other one of its name. False when it was gone already."""
    _check_owner(resource, current, owner_uid)
    if expectations is not None:
        expectations.expect_delete(owner_uid, current.uid, current.key)
    asked = False
    try:
        asked = await client.delete(resource, current.key, uid=current.uid, grace_seconds=grace_seconds)
    finally:
        if expectations is not None and not asked:
            expectations.drop_delete(current.uid)
    return asked


def _check_owner(resource: Resource, current: Metadata, owner_uid: str) -> None:
    if current.controller_uid != owner_uid or not current.uid:
        raise NotControlled(f"{resource.kind} {current.key} is not controlled by {owner_uid}")


def means_another(error: ApiError) -> bool:
    """Whether a refusal says that the UID we named is not (or no longer) the one under this name."""
    if error.not_found or (error.conflict and "uid mismatch" in error.refusal.message):
        return True
    return error.code == 422 and any(cause.field == "metadata.uid" for cause in error.refusal.causes)
