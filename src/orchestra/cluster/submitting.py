"""Submitting: checked by us and by the server before anything exists, and nothing left behind when it fails."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from orchestra.api.base import to_builtins
from orchestra.api.engine import EngineError, Submission
from orchestra.api.job import TorchrunJob
from orchestra.api.labels import FOLDER_LABEL, SUBMITTED_ANNOTATION
from orchestra.api.problem import Invalid, Problem
from orchestra.api.queue import TorchrunQueue
from orchestra.api.spelling import nearest
from orchestra.cluster.kinds import JOBS, QUEUES, read_job, read_queue
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError, KubeError
from orchestra.kube.listing import Selection
from orchestra.kube.objects import Key, MetadataOnly
from orchestra.plan import plan, status
from orchestra.plan.queues import SHARED_NAMESPACE

_ROOM_SECONDS = 120.0
_TICK_SECONDS = 0.2
Undo = Callable[[], Awaitable[Any]]


def folder_mark(folder: str) -> str:
    """A folder of a user on a machine, as a label: the same again from there, and telling nobody the path."""
    whole = f"{os.getuid()}@{platform.node()}:{folder}"
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


async def check(client: Client, namespace: str, submission: Submission) -> TorchrunJob | None:
    """Refuses what cannot run, before anything exists. Returns a finished job of the name, which must make room."""
    if submission.cpu:
        raise EngineError("--cpu is for this machine (add --local); in a cluster the queue says what a node has")
    if submission.in_place:
        raise EngineError("--in-place is for this machine (add --local): a cluster cannot run in your folder")
    body = _job_body(submission, namespace)
    await _refuse_what_cannot_run(client, namespace, submission)
    return await _dry_run(client, namespace, body)


async def submit(client: Client, namespace: str, submission: Submission) -> TorchrunJob:
    """Creates the job, and its queue if one came with it. Raises `Invalid`, `EngineError` or `KubeError`."""
    old = await check(client, namespace, submission)
    body = _job_body(submission, namespace)
    undo = await _apply_queue(client, namespace, submission.queue) if submission.queue is not None else None
    try:
        if old is not None:
            await _make_room(client, namespace, old)
        return read_job(await client.create(JOBS, namespace, body, msgspec.Raw))
    except BaseException as error:
        if undo is not None:
            await undo()
        if isinstance(error, ApiError) and error.already_exists:
            name = submission.job.metadata.name
            raise EngineError(f"another job {name} was submitted at the same moment") from error
        raise


def _job_body(submission: Submission, namespace: str) -> dict[str, Any]:
    meta = submission.job.metadata
    if meta.namespace and meta.namespace != namespace:
        raise EngineError(f"{meta.name} says namespace {meta.namespace}, the command line {namespace}: add -n")
    labels = meta.labels | {FOLDER_LABEL: folder_mark(submission.folder)}
    notes = meta.annotations | {SUBMITTED_ANNOTATION: f"{time.time():.6f}"}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": meta.name, "namespace": namespace, "labels": labels, "annotations": notes},
        "spec": to_builtins(submission.job.spec),
    }


async def _refuse_what_cannot_run(client: Client, namespace: str, submission: Submission) -> None:
    """What needs the queue to be seen: the API server looks at one object at a time."""
    job = submission.job
    queue = submission.queue
    if queue is None:
        known, all_known = await visible_queues(client, namespace)
        queue = next((one for one in known if one.metadata.name == job.spec.job_queue), None)
        if queue is None and all_known:
            names = sorted({one.metadata.name for one in known})
            guess = nearest(job.spec.job_queue, names)
            mend = f"did you mean {guess}?" if guess else f"there are: {', '.join(names) or 'none'}"
            raise Invalid([Problem("spec.jobQueue", f"there is no queue {job.spec.job_queue!r} in {namespace}", mend)])
    if queue is not None:
        plan(queue, job)


async def visible_queues(client: Client, namespace: str | None) -> tuple[list[TorchrunQueue], bool]:
    """The queues that jobs of a namespace can name, its own first; and whether those are all (rights may lack)."""
    found: list[TorchrunQueue] = []
    complete = True
    for place in dict.fromkeys((namespace, SHARED_NAMESPACE)) if namespace else (None,):
        try:
            listed = await client.list_all(QUEUES, msgspec.Raw, Selection(place))
        except ApiError as error:
            if error.code != 403 or place == namespace:
                raise
            complete = False
            continue
        found += map(read_queue, listed)
    return found, complete


async def _dry_run(client: Client, namespace: str, body: dict[str, Any]) -> TorchrunJob | None:
    """The server's own verdict. A finished job of the same name, which must make room, is returned."""
    try:
        await client.create(JOBS, namespace, body, MetadataOnly, dry_run=True)
    except ApiError as error:
        if not error.already_exists:
            raise
        name = body["metadata"]["name"]
        raw = await client.find(JOBS, Key(namespace, name), msgspec.Raw)
        if raw is None:
            return None
        old = read_job(raw)
        phase = status.status_of(old).phase or "Pending"
        if phase not in status.FINISHED:
            mend = "delete or cancel it first, or give the new job another name"
            raise EngineError(f"{name} is {phase}; {mend}") from error
        return old
    return None


async def _make_room(client: Client, namespace: str, old: TorchrunJob) -> None:
    """A finished job goes, with its pods: the new ones have their names."""
    key = Key(namespace, old.metadata.name)
    await client.delete(JOBS, key, uid=old.metadata.uid, propagation="Foreground")
    if not await gone(client, key, old.metadata.uid or "", _ROOM_SECONDS):
        raise EngineError(f"the finished job {key.name} does not go away; kubectl get torchrunjob {key.name} -o yaml")


async def gone(client: Client, key: Key, uid: str, seconds: float) -> bool:
    """Waits until a job (this one, not its namesake) is gone."""
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    while True:
        found = await client.find(JOBS, key, MetadataOnly)
        if found is None or found.metadata.uid != uid:
            return True
        if clock() > end:
            return False
        await asyncio.sleep(_TICK_SECONDS)


async def _apply_queue(client: Client, namespace: str, queue: TorchrunQueue) -> Undo | None:
    """The queue that came with the job, made or changed; returns how to take that back.

    Who may not write queues may still submit with the file of a queue that is there and says the same.
    """
    key = Key(queue.metadata.namespace or namespace, queue.metadata.name)
    spec = to_builtins(queue.spec)
    meta = {"name": key.name, "labels": queue.metadata.labels, "annotations": queue.metadata.annotations}
    body = {"apiVersion": QUEUES.api_version, "kind": QUEUES.kind, "metadata": meta, "spec": spec}
    raw = await client.find(QUEUES, key, msgspec.Raw)
    before = msgspec.json.decode(raw) if raw is not None else None
    try:
        made = await client.apply(QUEUES, key, body, MetadataOnly)
    except ApiError as error:
        if error.code != 403:
            raise
        if before is not None and contains(before["spec"], spec):
            return None
        what = "differs from the one in the cluster" if before is not None else "is not in the cluster"
        mend = "leave it out of the file, or ask an administrator (ClusterRole orchestra-queue-admin) to apply it"
        raise EngineError(f"queue {key} {what}, and you may not write queues; {mend}") from error
    if before is None:
        uid = made.metadata.uid
        return lambda: _quietly(client.delete(QUEUES, key, uid=uid))
    return lambda: _quietly(client.apply(QUEUES, key, {**body, "spec": before["spec"]}, MetadataOnly))


async def _quietly(work: Awaitable[Any]) -> None:
    try:
        await work
    except KubeError:
        return  # the first failure is the one to tell


def contains(whole: Any, part: Any) -> bool:
    """Whether all that `part` says stands in `whole`; what the server added does not matter."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and contains(whole[name], value) for name, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(contains, whole, part))
    return str(whole) == str(part)
