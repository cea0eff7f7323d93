"""Jobs whose agents cannot be asked: out of the cluster, behind a mesh or a policy. Their progress is in their log.

Silence is never taken for a hang: the agent alone decides that.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import cast

import msgspec

from orchestra.api.job import Progress, TorchrunJob
from orchestra.kube.cache import Cache
from orchestra.kube.client import Client
from orchestra.kube.errors import KubeError
from orchestra.kube.objects import by_controller
from orchestra.operator import conditions
from orchestra.operator.kinds import PodObject
from orchestra.plan.status import progress_from

AVAILABLE = "ProgressAvailable"
_MISSED = 3  # answers that may fail to come before it is said: a pod that starts does not listen yet
_LOG_SECONDS = 60.0
_LOG_AT_ONCE = 8
_TAIL = 400  # lines: the agent tells its progress twice a minute, among what the ranks say
_LINE = re.compile(rb"^\[agent\] progress (\{.*\})\s*$", re.MULTILINE)

ReadLog = Callable[[str], Awaitable[bytes]]
"""The end of the log of a job's first worker, by the job's UID."""


async def no_log(_uid: str) -> bytes:
    """Where logs cannot be read."""
    return b""


class Silences:
    """Who does not answer, and why."""

    def __init__(
        self,
        news: Callable[[str], None],
        *,
        read_log: ReadLog = no_log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._news, self._read_log, self._clock = news, read_log, clock
        self._missed: dict[str, int] = {}
        self._why: dict[str, str] = {}
        self._read: dict[str, float] = {}
        self._gate = asyncio.Semaphore(_LOG_AT_ONCE)

    def why(self, uid: str) -> str | None:
        """Why a job's agents cannot be asked; None while one answers, or has only just begun."""
        return self._why.get(uid)

    def answered(self, uid: str) -> None:
        """An agent of the job answered."""
        self._missed.pop(uid, None)
        self._read.pop(uid, None)
        if self._why.pop(uid, None) is not None:
            self._news(uid)

    async def missed(self, uid: str, address: str, error: BaseException) -> Progress | None:
        """None of its agents answered this time; what its log says, if it is time to look there."""
        self._missed[uid] = self._missed.get(uid, 0) + 1
        if self._missed[uid] < _MISSED:
            return None
        if uid not in self._why:
            self._why[uid] = f"the agent at {address} does not answer: {str(error) or type(error).__name__}"
            self._news(uid)
        now = self._clock()
        if now - self._read.get(uid, now - _LOG_SECONDS) < _LOG_SECONDS:
            return None
        self._read[uid] = now
        async with self._gate:
            try:
                return last_progress(await self._read_log(uid))
            except KubeError:
                return None  # the condition says already that nothing is known

    def forget(self, uid: str) -> None:
        """The job is gone, or does not run."""
        self._missed.pop(uid, None)
        self._why.pop(uid, None)
        self._read.pop(uid, None)

    def known(self) -> set[str]:
        """The jobs it knows something of."""
        return set(self._missed)


class WorkerLogs:
    """Reads the log of each job's first running worker, which is the one that writes its progress there."""

    def __init__(self, client: Client, pods: Cache[PodObject]) -> None:
        self._client, self._of = client, pods.index(by_controller)

    async def tail(self, uid: str) -> bytes:
        """The end of it."""
        running = [pod for pod in self._of.get(uid) if pod.is_worker and pod.status.phase == "Running"]
        if not running:
            return b""
        first = min(running, key=lambda pod: (-pod.attempt, pod.index))
        log = self._client.logs(first.metadata.key, container="trainer", tail=_TAIL)
        async with contextlib.aclosing(cast("AsyncGenerator[bytes, None]", log)) as pieces:
            return b"".join([piece async for piece in pieces])


def last_progress(log: bytes) -> Progress | None:
    """The last line in which an agent told how far its ranks are."""
    for line in reversed(_LINE.findall(log)):
        try:
            reported = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(reported, dict):
            return progress_from(reported)
    return None


def told(job: TorchrunJob, silence: str | None, now: float) -> TorchrunJob:
    """The job with a condition about its progress. That it can be had is said only where it could not be before."""
    if silence is not None:
        message = f"{silence}; the last progress comes from the log"
        return conditions.with_condition(job, AVAILABLE, "False", "Unreachable", message, now)
    if conditions.condition_of(job, AVAILABLE) is None:
        return job
    return conditions.with_condition(job, AVAILABLE, "True", "Reachable", "the agent answers", now)
