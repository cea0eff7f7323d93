"""Waiting for something to become true, instead of sleeping and hoping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# What takes a second on a quiet machine takes minutes when the disk is busy with somebody's gigabytes: a wait that ends
# too early makes a working test fail, one that ends late costs nothing.
PATIENCE = 180.0


def wait_until(what: str, condition: Callable[[], T], *, timeout: float = PATIENCE, interval: float = 0.05) -> T:
    """Ask `condition` until its answer is true, and return that answer.

    An exception of the condition ends the wait at once. TimeoutError says what was waited for, and the last
    answer.
    """
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout:g} s in vain: {what} (last answer: {answer!r})")
        time.sleep(interval)
