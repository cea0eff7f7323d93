"""Loss and speed of each step, without making a GPU wait for the question."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch


class Reading(NamedTuple):
    """One step that is over."""

    step: int
    loss: float
    tokens_per_second: float


class Meter:
    """Reads the loss of a step when the next one is already on its way; on the CPU, where nothing is, at once."""

    def __init__(self, report: Callable[[Reading], None], *, lagging: bool) -> None:
        self._report = report
        self._lagging = lagging
        self._unread: tuple[int, torch.Tensor, int] | None = None
        self._last = time.monotonic()

    def passed(self, step: int, loss: torch.Tensor, tokens: int) -> None:
        """A step was begun, and this is where its loss will be."""
        self.flush(pause=False)
        self._unread = (step, loss, tokens)
        if not self._lagging:
            self.flush(pause=False)

    def flush(self, *, pause: bool = True) -> None:
        """Report what is not reported yet. With `pause`, what comes next is no step."""
        if self._unread is not None:
            step, loss, tokens = self._unread
            self._unread = None
            value, now = float(loss.item()), time.monotonic()
            self._report(Reading(step, value, tokens / max(1e-9, now - self._last)))
            self._last = now
        if pause:
            self._last = time.monotonic()

    def resume(self) -> None:
        """Steps go on from here."""
        self._last = time.monotonic()
