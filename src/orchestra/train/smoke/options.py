"""The smoke trainer's options."""

from __future__ import annotations

from dataclasses import dataclass

from orchestra.train.options import option


@dataclass(frozen=True)
class Options:
    """Train a small classifier on synthetic data, with one process or many."""

    epochs: int = option(2, "how often each sample is seen", least=1)
    batch: int = option(256, "samples in a step, over all processes together", least=1)
    samples: int = option(4096, "samples in the training set", least=1)
    features: int = option(128, "numbers in a sample", least=1)
    classes: int = option(4, "classes to tell apart", least=2)
    lr: float = option(3e-3, "learning rate", least=0)
    seed: int = option(42, "of data, order and weights", least=0)
    output_dir: str = option("out", "folder for checkpoints; ORCHESTRA_OUTPUT_DIR wins over it")
    num_workers: int = option(0, "data-loader processes for each process", least=0)
    step_delay: float = option(0.0, "seconds to sleep in each step, for demonstrations", least=0)
    checkpoint_every: int = option(0, "steps between checkpoints; 0: only after each epoch", least=0)
    resume: bool = option(True, "continue from the newest complete checkpoint; a restart of the same job always does")

    def that_must_not_change(self) -> dict[str, int | float]:
        """What a resumed run must have in common with the one that saved."""
        names = ("batch", "samples", "features", "classes", "lr", "seed")
        return {name: getattr(self, name) for name in names}
