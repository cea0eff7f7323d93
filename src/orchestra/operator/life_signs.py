"""Asks the agents on nodes that are not well whether their ranks live. The others are left in peace."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import aiohttp
import msgspec

from orchestra.kube.cache import Cache
from orchestra.kube.objects import Key, by_controller
from orchestra.operator import names
from orchestra.operator.kinds import NodeObject, PodObject
from orchestra.operator.lost_nodes import Losses, Sign, last_life, losses

_EVERY = 1.0
_AT_ONCE = 64
_TIMEOUT = 2.0
_UNSEEN_ROUNDS = 20
_log = logging.getLogger(__name__)


class NodeWatch:
    """The nodes of all jobs' pods, and what the agents on the unwell ones say."""

    def __init__(
        self,
        nodes: Cache[NodeObject],
        pods: Cache[PodObject],
        readable: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`readable` says whether the nodes can be seen at all: where they cannot, none is ever lost."""
        self._nodes, self._pods, self._readable, self._clock = nodes, pods, readable, clock
        self._on_node = pods.index(lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ())
        self._of_job = pods.index(by_controller)
        self._signs: dict[str, Sign] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._unseen = 0

    @property
    def readable(self) -> bool:
        """Whether the operator sees nodes, and so decides itself which are lost."""
        return self._readable()

    def jobs_on(self, node: NodeObject) -> Iterable[str]:
        """UIDs of the jobs with pods there."""
        return {pod.metadata.controller_uid or "" for pod in self._on_node.get(node.metadata.name)}

    def losses(self, pods: Iterable[PodObject], patience: float) -> Losses:
        """Which of a job's pods are on lost nodes."""
        pods = [pod for pod in pods if pod.spec.node_name]
        if not pods or not self.readable:
            return Losses()
        nodes = {pod.spec.node_name: self._nodes.get(Key("", pod.spec.node_name)) for pod in pods}
        signs = {pod.metadata.uid: self._signs.get(pod.metadata.uid) for pod in pods}
        return losses(pods, nodes, signs, patience, self._clock())

    async def run(self) -> None:
        """Asks for ever."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                self._say_if_nodes_are_not_seen()
                suspects = self._suspects()
                self._signs = {uid: sign for uid, sign in self._signs.items() if uid in suspects}
                await asyncio.gather(*(self._ask(session, uid, address) for uid, address in suspects.items()))
                await asyncio.sleep(_EVERY)

    def _say_if_nodes_are_not_seen(self) -> None:
        """Once, and not while the first look at them is still under way."""
        self._unseen = 0 if self.readable else self._unseen + 1
        if self._unseen == _UNSEEN_ROUNDS:
            _log.warning(
                "nodes cannot be read (Roles of some namespaces do not allow it); Kubernetes' own eviction decides "
                "when a node is lost, and a pod that is stuck on one holds its job up"
            )

    def _suspects(self) -> Mapping[str, str]:
        """The pods whose nodes are not well, each with the address to ask."""
        if not self.readable:
            return {}
        found: dict[str, str] = {}
        for name in self._on_node.values():
            node = self._nodes.get(Key("", str(name)))
            if node is None or not node.ready:
                found |= {pod.metadata.uid: self._whom(pod) for pod in self._on_node.get(name) if not pod.ended}
        return found

    def _whom(self, pod: PodObject) -> str:
        """Its own agent; a store has none, and lives if the workers that need it do."""
        if pod.is_worker:
            return pod.status.pod_ip
        family = self._of_job.get(pod.metadata.controller_uid or "")
        workers = (one for one in family if one.is_worker and one.attempt == pod.attempt and not one.ended)
        elsewhere = sorted(workers, key=lambda one: (one.spec.node_name == pod.spec.node_name, one.index))
        return elsewhere[0].status.pod_ip if elsewhere else ""

    async def _ask(self, session: aiohttp.ClientSession, uid: str, address: str) -> None:
        sign = self._signs.get(uid) or Sign(self._clock())
        self._signs.setdefault(uid, sign)
        life: float | None = None
        if address:
            async with self._gate:
                try:
                    async with session.get(f"http://{address}:{names.AGENT_PORT}/progress") as answer:
                        life = last_life(msgspec.json.decode(await answer.read()), self._clock())
                except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
                    life = None
        alive = sign.alive if life is None else max(life, sign.alive or 0.0)
        self._signs[uid] = replace(sign, asked=sign.asked + 1, alive=alive)
