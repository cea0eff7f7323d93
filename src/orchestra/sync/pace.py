"""How often to try again, and how much at once: full-jitter retries, and half as much when a server says slow down."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from orchestra.sync.errors import SyncError

Result = TypeVar("Result")


class Pace:
    """At most so many requests at once. Halved when a server asks for it, then slowly back up."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._running = 0
        self._halved = 0.0
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """How many may run now."""
        return max(1, int(self._limit))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, and take it."""
        with self._changed:
            while self._running >= self.limit:
                self._changed.wait()
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify()

    def slow_down(self) -> None:
        """The server is overloaded. Answers of one burst count once: they all say the same."""
        with self._changed:
            now = time.monotonic()
            if now - self._halved > 0.1:
                self._halved = now
                self._limit = max(1.0, self._limit / 2)

    def went_well(self) -> None:
        """One more that succeeded: a full round of them allows one more at once."""
        if self._limit < self._most:
            with self._changed:
                self._limit = min(float(self._most), self._limit + 1 / self._limit)
                self._changed.notify()


@dataclass(frozen=True)
class Patience:
    """How long to go on trying. Waits are random between nothing and a bound that doubles (full jitter), so that a
    thousand workers that were refused together do not come back together.
    """

    seconds: float = 60.0
    tries: int = 12
    first_wait: float = 0.1
    longest_wait: float = 10.0
    sleep: Callable[[float], None] = time.sleep

    def call(self, action: Callable[[], Result], pace: Pace) -> Result:
        """Do it, again and again while it may help. Raises the last error otherwise."""
        until = time.monotonic() + self.seconds
        for attempt in range(self.tries):
            with pace.turn():
                try:
                    result = action()
                except SyncError as error:
                    fault = getattr(error, "fault", None)
                    if fault is None or not fault.passing or attempt == self.tries - 1 or time.monotonic() > until:
                        raise
                    if fault.slow_down:
                        pace.slow_down()
                else:
                    pace.went_well()
                    return result
            # Outside of the turn: who waits does not keep others from trying.
            self.sleep(random.uniform(0, min(self.longest_wait, self.first_wait * 2**attempt)))  # noqa: S311
        raise AssertionError("unreachable")
