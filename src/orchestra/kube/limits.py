"""How much at once, and how fast: what keeps one operator from being a flood."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Bounds on ordinary requests. The server's own fairness answers with 429 on top, which is honoured."""

    concurrency: int = 64
    rate: float | None = None
    """Requests a second in the long run; None leaves it to the server."""
    burst: int = 100
    """How many may go at once after a quiet time."""


class Bucket:
    """A token bucket that tells how long to wait instead of waiting."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = 1.0 / rate
        self._slack = self._interval * (burst - 1)
        self._clock = clock
        self._next = clock() - self._slack

    def reserve(self) -> float:
        """Take one token, also a future one; returns the seconds until it is there."""
        now = self._clock()
        due = max(self._next, now - self._slack)
        self._next = due + self._interval
        return max(0.0, due - now)

    def take(self) -> bool:
        """Take one token if there is one now."""
        if max(self._next, self._clock() - self._slack) > self._clock():
            return False
        self.reserve()
        return True


class Gate:
    """Lets requests in by the limits, first come first served. Wait time is nobody's request timeout."""

    def __init__(self, limits: Limits) -> None:
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._bucket = None if limits.rate is None else Bucket(limits.rate, limits.burst)

    async def __aenter__(self) -> None:
        if self._bucket is not None:
            delay = self._bucket.reserve()
            if delay > 0:
                await asyncio.sleep(delay)
        await self._slots.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._slots.release()
