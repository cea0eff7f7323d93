"""What running jobs report: asked of one agent a job, off the reconcile path."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable

import aiohttp
import msgspec

from orchestra.api.job import Progress
from orchestra.kube.limits import Bucket
from orchestra.operator import names
from orchestra.operator.kinds import PodObject
from orchestra.operator.options import PROGRESS_SECONDS
from orchestra.operator.silences import ReadLog, Silences, no_log
from orchestra.plan.status import progress_from

_AT_ONCE = 64
_TIMEOUT = 2.0
_QUIET_ROUNDS = 3  # a job whose steps alone have changed is news once in so many times `every`
_WRITES_A_SECOND = 20.0  # news of that kind, of all jobs together


class ProgressBoard:
    """The last word of each running job. `targets` names whom to ask: job UID -> addresses of its workers.
    Who of them has rank 0 is what agents report, and is asked again as long as it answers.

    A first word and a new checkpoint are news at once. Steps are only now and then, since each is a status write: 1,000
    jobs that count steps must not be 100 writes a second. Whatever else is written of a job carries its latest word.
    """

    def __init__(
        self,
        targets: Callable[[], dict[str, list[str]]],
        news: Callable[[str], None],
        *,
        every: float = PROGRESS_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        read_log: ReadLog = no_log,
    ) -> None:
        self._every = every
        self._silences = Silences(news, read_log=read_log, clock=clock)
        self._targets = targets
        self._news = news
        self._clock = clock
        self._known: dict[str, Progress] = {}
        self._rounds: dict[str, tuple[int, int]] = {}
        self._asked: dict[str, str] = {}
        self._told: dict[str, tuple[Progress, float]] = {}
        self._waiting: dict[str, None] = {}
        self._bucket = Bucket(_WRITES_A_SECOND, int(_WRITES_A_SECOND), clock)
        self._gate = asyncio.Semaphore(_AT_ONCE)

    def progress(self, uid: str) -> Progress | None:
        """What a job last reported."""
        return self._known.get(uid)

    def in_place(self, uid: str, attempt: int | None) -> int:
        """How often the ranks of this attempt were started again in place, as an agent last told it."""
        told, rounds = self._rounds.get(uid, (None, 0))
        return rounds if told == attempt else 0

    def silence(self, uid: str) -> str | None:
        """Why its agents cannot be asked; None while they answer."""
        return self._silences.why(uid)

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._silences.forget(uid)
        self._known.pop(uid, None)
        self._rounds.pop(uid, None)
        self._asked.pop(uid, None)
        self._told.pop(uid, None)
        self._waiting.pop(uid, None)

    async def run(self) -> None:
        """Asks for ever, evenly: a thousand at one moment would hold up everything else."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
            while True:
                targets = self._targets()
                for uid in (set(self._known) | set(self._rounds) | self._silences.known()) - set(targets):
                    self.forget(uid)
                pause = self._every * random.uniform(0.4, 0.6) / max(1, len(targets))  # noqa: S311 -- jitter
                for uid, workers in targets.items():
                    group.create_task(self.ask(session, uid, workers))
                    await asyncio.sleep(pause)
                if not targets:
                    await asyncio.sleep(pause)

    async def ask(self, session: aiohttp.ClientSession, uid: str, workers: list[str]) -> None:
        """Ask one worker of a job."""
        address = self._asked.get(uid)
        if address not in workers:
            address = workers[0]
        self._asked[uid] = workers[(workers.index(address) + 1) % len(workers)]  # unless this one has rank 0
        failure: Exception | None = None
        async with self._gate:
            try:
                async with session.get(f"http://{address}:{names.AGENT_PORT}/progress") as answer:
                    view = msgspec.json.decode(await answer.read())
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
                failure = error
        if failure is not None:  # unreachable is not a hang: the agent alone decides that
            logged = await self._silences.missed(uid, f"{address}:{names.AGENT_PORT}", failure)
            if logged is not None:
                self.heard(uid, logged)
            return
        self._silences.answered(uid)
        if isinstance(view, dict) and "0" in (view.get("ranks") or {}):
            self._asked[uid] = address
        if not isinstance(view, dict):
            return
        attempt, rounds, reported = (view.get(name) for name in ("attempt", "restarts", "progress"))
        if isinstance(attempt, int) and isinstance(rounds, int):
            self._rounds[uid] = (attempt, rounds)
        if isinstance(reported, dict):
            self.heard(uid, progress_from(reported))

    def heard(self, uid: str, made: Progress) -> None:
        """A job's word; whether it is news is decided here."""
        self._known[uid] = made
        now = self._clock()
        before, when = self._told.get(uid, (None, 0.0))
        if made == before:
            return
        if before is None or made.checkpoint_step != before.checkpoint_step:
            self._tell(uid, now)
        elif now - when >= _QUIET_ROUNDS * self._every:
            self._waiting.setdefault(uid)
        while self._waiting and self._bucket.take():  # in the order they came: nobody is passed over for ever
            self._tell(next(iter(self._waiting)), now)

    def _tell(self, uid: str, now: float) -> None:
        self._waiting.pop(uid, None)
        self._told[uid] = (self._known[uid], now)
        self._news(uid)


def addresses(running: Iterable[PodObject]) -> dict[str, list[str]]:
    """The running workers of each job's newest attempt: what a lost node still runs of an older one is not asked."""
    found: dict[str, tuple[int, list[str]]] = {}
    for pod in sorted(running, key=lambda pod: (-pod.attempt, pod.index)):
        attempt, known = found.setdefault(pod.metadata.controller_uid or "", (pod.attempt, []))
        if attempt == pod.attempt and pod.status.pod_ip:
            known.append(pod.status.pod_ip)
    return {uid: known for uid, (_, known) in found.items() if known}
