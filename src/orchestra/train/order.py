"""The order of samples: a function of the seed and the global sample index, known without looking at any other index.

A shuffle that stores nothing: a keyed permutation (a Feistel network) of the next power of four, walked until it falls
inside the range. A run that resumes after a billion samples computes the next one as quickly as the first.
"""

from __future__ import annotations

from dataclasses import dataclass

_ROUNDS = 4
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Order:
    """All samples of a data set, shuffled anew in each epoch, for ever."""

    samples: int
    seed: int

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"an order of {self.samples} samples: there must be at least one")

    def __getitem__(self, index: int) -> int:
        """The sample at this global index, which counts on over epochs."""
        epoch, within = divmod(index, self.samples)
        half = max(1, ((self.samples - 1).bit_length() + 1) // 2)
        key = _mix(self.seed * 0x9E3779B97F4A7C15 + epoch)
        while True:  # fewer than four rounds on average: the power is at most four times the range
            within = _permuted(within, half, key)
            if within < self.samples:
                return within

    def share(self, step: int, batch: int, rank: int, size: int) -> list[int]:
        """What one of `size` ranks trains on in a step (from 0) of a global batch: every size-th sample of it."""
        return [self[index] for index in range(step * batch + rank, (step + 1) * batch, size)]


def _permuted(value: int, half: int, key: int) -> int:
    low_bits = (1 << half) - 1
    left, right = value >> half, value & low_bits
    for turn in range(_ROUNDS):
        left, right = right, left ^ (_mix(right + key + turn * 0xD1B54A32D192ED03) & low_bits)
    return left << half | right


def _mix(value: int) -> int:
    """SplitMix64's finalizer: neighbouring values come out unrelated."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31
