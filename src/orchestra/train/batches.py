"""Which samples each step trains on: a function of the seed and the step alone.

The global batch is fixed and the number of processes only slices it, so that a training may be stopped, crash, and
go on with more or fewer processes, and still sees the same samples in the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestra.train.world import Refused

_SIZES_NAMED = 12


@dataclass(frozen=True)
class Batches:
    """The steps of a training over `samples` samples, shuffled anew each epoch.

    Knows its position in O(1) steps and one permutation: nothing is skipped over on resume. The last batch of an
    epoch is shorter where `batch` does not divide `samples`.
    """

    samples: int
    batch: int
    epochs: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps that see each sample once."""
        return -(-self.samples // self.batch)

    @property
    def steps(self) -> int:
        """The number of steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    def size_of(self, step: int) -> int:
        """How many samples all processes together train on in this step. Steps count from 1."""
        first = (step - 1) % self.steps_per_epoch * self.batch
        return min(self.batch, self.samples - first)

    def slices(self, rank: int, size: int, after: int = 0) -> Iterator[list[int]]:
        """The rank's samples of each step after step `after`, to the end of the training."""
        order: list[int] = []
        for step in range(after, self.steps):
            epoch, within = divmod(step, self.steps_per_epoch)
            if not order or within == 0:
                order = _shuffled(self.samples, self.seed, epoch)
            first = within * self.batch
            yield order[first : first + self.batch][rank::size]


def refuse_uneven(batch: int, size: int) -> None:
    """Raise `Refused` unless this many processes can share the batch, naming the numbers that can."""
    if batch % size == 0:
        return
    fitting = [divisor for divisor in range(1, batch + 1) if batch % divisor == 0]
    named = ", ".join(map(str, fitting[:_SIZES_NAMED])) + (", ..." if len(fitting) > _SIZES_NAMED else "")
    raise Refused(f"{size} processes cannot share a global batch of {batch} evenly. Numbers that can: {named}.")


def _shuffled(samples: int, seed: int, epoch: int) -> list[int]:
    import torch

    generator: Any = torch.Generator().manual_seed((seed << 20) + epoch)
    order: list[int] = torch.randperm(samples, generator=generator).tolist()
    return order
