"""Synthetic samples: clouds around one centre for each class, each sample a function of seed and index alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

_SPREAD = 6.0  # distance between centres, in units of the noise: few samples lie on the wrong side
_SAMPLE_SEEDS = 1 << 32  # room between the seeds of two data sets


@dataclass(frozen=True)
class Clouds:
    """A data set of any length: whoever asks for sample i, on any rank or data-loader worker, gets the same."""

    features: int
    classes: int
    seed: int

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Sample and label."""
        noise = torch.randn(self.features, generator=_generator(self.seed * _SAMPLE_SEEDS + index + 1))
        label = index % self.classes
        return self._centres[label] + noise, label

    def rows(self, indices: range) -> tuple[torch.Tensor, torch.Tensor]:
        """Several samples and their labels."""
        samples = [self[index] for index in indices]
        features = torch.stack([sample for sample, _ in samples]) if samples else torch.empty(0, self.features)
        return features, torch.tensor([label for _, label in samples], dtype=torch.long)

    @cached_property
    def _centres(self) -> torch.Tensor:
        directions = torch.randn(self.classes, self.features, generator=_generator(self.seed * _SAMPLE_SEEDS))
        centres: torch.Tensor = directions * (_SPREAD / (2 * self.features) ** 0.5)
        return centres


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % (1 << 63))
