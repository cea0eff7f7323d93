"""What a fine-tuning leaves behind: `epoch-1/rank-0` with the model or adapter, `best` for the lowest validation loss.

<output>/<run>/
  epoch-1/rank-0/     adapter_model.safetensors, adapter_config.json (or the model), the tokenizer, metrics.json
  epoch-1/rank-1/     metrics.json
  best -> epoch-1
  checkpoints/        for resuming: the library's
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestra.train.durable import replace_json
from orchestra.train.reporting import phase
from orchestra.train.world import World

if TYPE_CHECKING:
    from orchestra.train.sft.parallel import Parallel

_LIMIT = 3600.0


class Score(NamedTuple):
    """How good the model was after an epoch, on documents that it never trains on."""

    epoch: int
    step: int
    loss: float
    perplexity: float


class Outputs:
    """The folder of one fine-tuning."""

    def __init__(self, folder: Path, world: World) -> None:
        self._folder = folder
        self._world = world

    def write_epoch(self, score: Score, parallel: Parallel, tokenizer: Any) -> None:
        """Write what an epoch has made of the model. Called on all ranks."""
        with phase("save", _LIMIT):
            weights = parallel.weights()
            folder = self._folder / f"epoch-{score.epoch}"
            own = folder / f"rank-{self._world.rank}"
            draft = folder / f"tmp-rank-{self._world.rank}-{os.getpid()}"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            if self._world.is_first:
                parallel.loss_of.write(draft, weights)
                tokenizer.save_pretrained(draft)
            numbers = {"rank": self._world.rank, "worldSize": self._world.size, "time": time.time()}
            replace_json(draft / "metrics.json", {**score._asdict(), **numbers})
            shutil.rmtree(own, ignore_errors=True)
            draft.rename(own)

    def best(self, scores: Sequence[Score]) -> Path:
        """The folder of the epoch with the lowest validation loss."""
        return self._folder / f"epoch-{min(scores, key=lambda score: score.loss).epoch}"

    def point_best(self, scores: Sequence[Score]) -> str:
        """Let `best` point at it. Returns its name."""
        best = self.best(scores)
        if self._world.is_first:
            draft = self._folder / f"tmp-best-{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):
                draft.unlink()
            try:
                draft.symlink_to(best.name)
            except OSError:  # a file system without links: a file that holds the name
                draft.write_text(best.name + "\n")
            draft.replace(self._folder / "best")
        return best.name
