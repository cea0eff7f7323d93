"""Goodput: the share of wall time that went into steps which still count, over all restarts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


class Goodput:
    """Put its `state()` into each checkpoint and give that back on resume.

    Then steps that were lost and done again count once, while starting, loading, saving, evaluating and standing still
    between attempts count as what they are: time without a step.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._started = float(state["started"]) if state else time.time()
        self._useful = float(state["useful"]) if state else 0.0

    def step(self, seconds: float) -> None:
        """One step was done in so many seconds."""
        self._useful += seconds

    def share(self) -> float:
        """The goodput so far, between 0 and 1."""
        return min(1.0, self._useful / max(time.time() - self._started, 1e-9))

    def state(self) -> dict[str, float]:
        """What a checkpoint must hold of it."""
        return {"started": self._started, "useful": self._useful}
