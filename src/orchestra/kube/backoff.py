"""Waiting longer after each failure, never at the same moment as everybody else."""

import random
from collections.abc import Callable

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """Delays that double from `first` to `longest`, each cut by a random part of up to `jitter`."""

    first: float
    longest: float
    jitter: float = 0.3

    def delay(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """How long to wait after the n-th failure in a row (from 1 on). Never more than `longest`."""
        doublings = min(max(failures, 1) - 1, 60)  # 2.0**1100 is an OverflowError
        return float(min(self.longest, self.first * 2.0**doublings) * (1.0 - self.jitter * chance()))
