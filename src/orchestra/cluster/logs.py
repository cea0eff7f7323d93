"""The job's log in a cluster: lines of all pods and attempts, followed across restarts and pods that come later."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

from orchestra.api.engine import LogLine, LogQuery
from orchestra.cluster.foreign import in_role
from orchestra.cluster.kinds import Pod
from orchestra.cluster.log_lines import UNTAGGED, Place, read_line, wanted
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError, KubeError
from orchestra.kube.watch import LineSplitter
from orchestra.plan.status import timestamp

_LOOK_SECONDS = 1.0
_TICK_SECONDS = 0.2
_LAST_LOOKS = 30
"""How often we look after a job has come to rest for a pod that does not end (its node is gone, say)."""
_QUIET_LOOKS = 5
"""How long after a job has come to rest nothing may be said. A rendered StatefulSet's pods idle, and never end."""
_BATCH = 1000
_NOT_ALLOWED = (401, 403)
_NO_LOG = (400, 404)
"""The container has not started, or the pod has gone meanwhile."""

Pods = Callable[[], Awaitable[list[Pod]]]
Ended = Callable[[], Awaitable[bool]]
Batches = AsyncGenerator[Sequence[LogLine], None]


async def read_logs(client: Client, query: LogQuery, pods: Pods, ended: Ended) -> Batches:
    """The lines that a query asks for, in batches. `pods` are the job's workers, `ended` whether it is at rest.

    First what there is, in the order of time over all pods; then, with `follow`, what comes, until the job is at rest
    and every pod's log is read to its end.
    """
    logs: dict[str, _PodLog] = {}
    chosen = wanted(query)
    all_pods = pods

    async def of_role() -> list[Pod]:
        return in_role(await all_pods(), query.role)

    pods = of_role
    over = await ended() if query.follow else True  # asked before reading: what came before the end is not missed
    for pod in await pods():
        logs[pod.metadata.uid] = _PodLog(client, pod, query)
    past = _merged([log.past() for log in logs.values() if log.started], chosen)
    if query.tail is not None:
        kept: deque[LogLine] = deque(maxlen=query.tail)
        async for batch in past:
            kept.extend(batch)
        yield list(kept)
    else:
        async for batch in past:
            yield batch
    if query.follow and not over:
        async for batch in _follow(client, query, pods, ended, logs):
            yield list(filter(chosen, batch))


async def _follow(client: Client, query: LogQuery, pods: Pods, ended: Ended, logs: dict[str, _PodLog]) -> Batches:
    fresh: asyncio.Queue[LogLine] = asyncio.Queue()
    readers: dict[str, asyncio.Task[None]] = {}
    clock = asyncio.get_running_loop().time
    look, over = 0.0, False
    patience, quiet = _LAST_LOOKS, 0
    unread: list[_PodLog] = []
    try:
        while True:
            if clock() >= look:
                look = clock() + _LOOK_SECONDS
                over = await ended()  # before the pods: no reader is missed that belongs to the end
                unread = []
                for pod in await pods():
                    uid = pod.metadata.uid
                    log = logs.setdefault(uid, _PodLog(client, pod, query))
                    log.pod = pod
                    if not log.started or log.read_to_the_end:
                        continue
                    unread.append(log)
                    if uid not in readers or readers[uid].done():
                        _raise_if_broken(readers.get(uid))
                        readers[uid] = asyncio.create_task(log.follow(fresh))
                patience -= 1 if over else 0
                quiet += 1 if over else 0
            working = any(not task.done() for task in readers.values())
            batch = [fresh.get_nowait() for _ in range(fresh.qsize())]
            yield sorted(batch, key=lambda line: line.time)
            quiet = 0 if batch else quiet
            finished = not working and all(log.read_to_the_end for log in unread)
            if over and fresh.empty() and (finished or patience <= 0 or quiet >= _QUIET_LOOKS):
                return
            await asyncio.sleep(_TICK_SECONDS)
    finally:
        for task in readers.values():
            task.cancel()
        await asyncio.gather(*readers.values(), return_exceptions=True)


def _raise_if_broken(reader: asyncio.Task[None] | None) -> None:
    failure = reader.exception() if reader is not None else None
    if failure is not None:
        raise failure


class _PodLog:
    """One pod's log, read from where it was left."""

    def __init__(self, client: Client, pod: Pod, query: LogQuery) -> None:
        self._client, self.pod = client, pod
        self._since = timestamp(query.since) if query.since is not None else ""
        plain = query.ranks is None and query.grep is None
        self._tail = query.tail if plain else None  # the last lines of the pod, where all of them are wanted
        self._place = Place()
        self._restarts = 0
        self.read_to_the_end = False

    @property
    def started(self) -> bool:
        """Whether there is something to read."""
        state = self.pod.container()
        return state.running is not None or state.terminated is not None

    async def past(self) -> AsyncIterator[Sequence[LogLine]]:
        """What there is now. A log that cannot be read (its node is gone) says so and does not hide the others."""
        ended = self.pod.ended
        try:
            async for batch in self._read(follow=False, tail=self._tail):
                yield batch
            self.read_to_the_end = ended
        except ApiError as error:
            if error.code in _NOT_ALLOWED:
                raise
            name, reason = self.pod.metadata.name, error.refusal.message
            yield [LogLine(time.time(), UNTAGGED, f"the log of {name} cannot be read now: {reason}")]

    async def follow(self, into: asyncio.Queue[LogLine]) -> None:
        """Puts what comes into a queue until the container ends or the connection breaks; then call it again."""
        ended = self.pod.ended
        try:
            async for batch in self._read(follow=True, tail=None if self._place.stamp else self._tail):
                for line in batch:
                    into.put_nowait(line)
            self.read_to_the_end = ended
        except KubeError as error:
            if isinstance(error, ApiError) and error.code in _NOT_ALLOWED:
                raise

    async def _read(self, *, follow: bool, tail: int | None) -> AsyncIterator[Sequence[LogLine]]:
        restarts = self.pod.restarts
        if restarts > self._restarts:  # the container before may have ended before anybody read its last lines
            self._restarts = restarts
            async for batch in self._stream(follow=False, tail=tail, previous=True):
                yield batch
        async for batch in self._stream(follow=follow, tail=tail):
            yield batch

    async def _stream(
        self, *, follow: bool, tail: int | None, previous: bool = False
    ) -> AsyncIterator[Sequence[LogLine]]:
        self._place.reopened()
        splitter = LineSplitter()
        since = self._place.second or self._since
        stream = self._client.logs(
            self.pod.metadata.key,
            container=self.pod.trainer,
            follow=follow,
            tail=tail,
            previous=previous,
            since=since,
            timestamps=True,
        )
        try:
            async with contextlib.aclosing(stream) as pieces:  # type: ignore[type-var]  # it is a generator
                async for piece in pieces:
                    read = (read_line(line, self._place) for line in splitter.feed(piece))
                    lines = [line for line in read if line is not None]
                    if lines:
                        yield lines
        except ApiError as error:
            if error.code not in _NO_LOG:
                raise


async def _merged(
    sources: list[AsyncIterator[Sequence[LogLine]]], chosen: Callable[[LogLine], bool]
) -> AsyncIterator[Sequence[LogLine]]:
    """Lines of several logs in the order of their time, without holding whole logs in memory."""
    heads: list[tuple[float, int, int]] = []  # time of the next line, which source, which line of its batch
    # No tuple for a default: before Python 3.12 `anext` cannot give one back.
    batches: list[Sequence[LogLine] | None] = list(await asyncio.gather(*(anext(one, None) for one in sources)))
    for number, batch in enumerate(batches):
        if batch:
            heads.append((batch[0].time, number, 0))
    heapq.heapify(heads)
    out: list[LogLine] = []
    while heads:
        _, number, index = heads[0]
        batch = batches[number] or ()
        line = batch[index]
        if index + 1 == len(batch):
            batch = batches[number] = await anext(sources[number], None)
            index = -1
        if batch:
            heapq.heapreplace(heads, (batch[index + 1].time, number, index + 1))
        else:
            heapq.heappop(heads)
        if chosen(line):
            out.append(line)
        if len(out) >= _BATCH:
            yield out
            out = []
    yield out
