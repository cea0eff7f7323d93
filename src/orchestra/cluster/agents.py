"""What the workers' agents say of themselves, asked through the API server: it reaches pods where we do not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from orchestra.api.engine import EngineError
from orchestra.cluster.kinds import Pod
from orchestra.kube.client import Client
from orchestra.kube.errors import KubeError
from orchestra.kube.objects import PODS
from orchestra.plan.where import AGENT_PORT

_PAGE_SECONDS = 3.0


async def page_of(client: Client, pod: Pod) -> dict[str, Any]:
    """A worker's own page; empty where it cannot be asked."""
    if pod.status.phase != "Running":
        return {}
    path = f"{PODS.path(pod.metadata.key)}:{AGENT_PORT}/proxy/progress"
    with contextlib.suppress(KubeError, TimeoutError, msgspec.DecodeError):
        async with asyncio.timeout(_PAGE_SECONDS):
            answer = await client.transport.request("GET", path, idempotent=False)
            found = msgspec.json.decode(answer.body)
            return found if isinstance(found, dict) else {}
    return {}


async def pod_of_rank(client: Client, pods: Sequence[Pod], rank: int) -> Pod:
    """The pod in which a rank runs, as the agents tell it. Never by counting: torchrun orders nodes its own way."""
    running = [pod for pod in pods if pod.status.phase == "Running"]
    if not running:
        raise EngineError("no pod of it is running; why tells the reason")
    pages = await asyncio.gather(*(page_of(client, pod) for pod in running))
    known: list[int] = []
    for pod, page in zip(running, pages, strict=True):
        ranks = [int(one) for one in page.get("ranks") or {} if str(one).isdigit()]
        if rank in ranks:
            return pod
        known += ranks
    if not known:
        raise EngineError(f"no agent tells where rank {rank} runs; name the pod or its node instead (--node 0)")
    raise EngineError(f"there is no rank {rank}; its ranks are {min(known)} to {max(known)}")
