"""What running jobs report: asked of one agent a job, off the reconcile path."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import aiohttp
import msgspec

from orchestra.api.job import Progress
from orchestra.operator import names
from orchestra.operator.options import PROGRESS_SECONDS
from orchestra.plan.status import progress_from

_AT_ONCE = 64
_TIMEOUT = 2.0


class ProgressBoard:
    """The last word of each running job. `targets` names whom to ask: job UID -> address of rank 0's pod."""

    def __init__(
        self, targets: Callable[[], dict[str, str]], news: Callable[[str], None], *, every: float = PROGRESS_SECONDS
    ) -> None:
        self._every = every
        self._targets = targets
        self._news = news
        self._known: dict[str, Progress] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    def progress(self, uid: str) -> Progress | None:
        """What a job last reported."""
        return self._known.get(uid)

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._known.pop(uid, None)

    async def run(self) -> None:
        """Asks for ever."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                targets = self._targets()
                for uid in set(self._known) - set(targets):
                    self.forget(uid)
                await asyncio.gather(*(self._ask(session, uid, address) for uid, address in targets.items()))
                await asyncio.sleep(self._every * random.uniform(0.4, 0.6))  # noqa: S311 -- jitter

    async def _ask(self, session: aiohttp.ClientSession, uid: str, address: str) -> None:
        async with self._gate:
            try:
                async with session.get(f"http://{address}:{names.AGENT_PORT}/progress") as answer:
                    view = msgspec.json.decode(await answer.read())
            except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
                return  # unreachable is not a hang: the agent alone decides that
        reported = view.get("progress") if isinstance(view, dict) else None
        if isinstance(reported, dict):
            made = progress_from(reported)
            if made != self._known.get(uid):
                self._known[uid] = made
                self._news(uid)
