"""Gathers what `why` judges: with the user's rights, so parts may be hidden."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from orchestra.api.job import TorchrunJob
from orchestra.api.labels import JOB_LABEL
from orchestra.cluster.happenings import warnings_of
from orchestra.cluster.kinds import CORE_EVENTS, JOBS, Claim, ClusterEvent, Node, Pod, read_job
from orchestra.cluster.submitting import visible_queues
from orchestra.cluster.why import Observed
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError
from orchestra.kube.listing import Selection
from orchestra.kube.objects import NODES, PODS, VOLUME_CLAIMS
from orchestra.plan import status

A = TypeVar("A")
_PLACED = "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!="


async def observe(client: Client, job: TorchrunJob, namespace: str) -> Observed:
    """All that bears on one job, as far as we may look."""
    attempt, uid = status.status_of(job).attempt, job.metadata.uid
    mine = Selection(namespace, f"{JOB_LABEL}={job.metadata.name}")
    about = Selection(namespace, fields=f"involvedObject.uid={uid},type=Warning")
    pods, others, queues, own, warnings = await asyncio.gather(
        client.list_all(PODS, Pod, mine),
        client.list_all(JOBS, msgspec.Raw, Selection(namespace)),
        visible_queues(client, namespace),
        client.list_all(CORE_EVENTS, ClusterEvent, about),
        warnings_of(client, job, namespace),
    )
    claims, nodes, placed = await asyncio.gather(
        allowed(client.list_all(VOLUME_CLAIMS, Claim, Selection(namespace))),
        allowed(client.list_all(NODES, Node)),
        allowed(client.list_all(PODS, Pod, Selection(None, fields=_PLACED))),
    )
    workers = [pod for pod in pods if pod.is_worker and pod.attempt == attempt and pod.metadata.controller_uid == uid]
    jobs = [other for other in map(read_job, others) if other.metadata.uid != uid]
    return Observed(
        job=job,
        namespace=namespace,
        now=time.time(),
        queues=tuple(queues[0]),
        others=tuple(jobs),
        pods=tuple(sorted(workers, key=lambda pod: pod.index)),
        claims=tuple(claims or ()),
        events=(*own, *warnings),
        nodes=None if nodes is None else tuple(nodes),
        placed=None if placed is None else tuple(placed),
    )


async def allowed(work: Awaitable[A]) -> A | None:
    """What it gives, or None where we have no right to look."""
    try:
        return await work
    except ApiError as error:
        if error.code != 403:
            raise
        return None
