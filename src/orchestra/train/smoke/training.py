"""The smoke trainer's training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from orchestra import train
from orchestra.train import environment
from orchestra.train.batches import Batches, refuse_uneven
from orchestra.train.smoke.data import Clouds
from orchestra.train.smoke.options import Options

_HIDDEN = 64
_HELD_OUT = 1024
_LOG_EVERY = 4
_EVALUATION_LIMIT = 300.0


class Score(NamedTuple):
    """How good the model is on samples that it never trains on."""

    loss: float
    accuracy: float


class Trainer:
    """One training on one rank."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.world = train.init(options.output_dir, seed=options.seed)
        refuse_uneven(options.batch, self.world.size)
        print(
            f"[DDP] rank {self.world.rank} of {self.world.size}: {self.world.backend} on {self.world.device}, "
            f"global batch {options.batch} = {self.world.size} x {options.batch // self.world.size}",
            flush=True,
        )
        self.batches = Batches(options.samples, options.batch, options.epochs, options.seed)
        self.data = Clouds(options.features, options.classes, options.seed)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(options.features, _HIDDEN), torch.nn.GELU(), torch.nn.Linear(_HIDDEN, options.classes)
        ).to(self.world.device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=options.lr)
        self.checkpoints = train.Checkpoints(self.world.output_dir / "checkpoints")
        self.step = self._resume()
        self.model = DistributedDataParallel(self.net) if self.world.size > 1 else self.net
        self.stop = train.Stop()

    def run(self) -> None:
        """Train to the end, or to the step at which a stop is agreed."""
        for features, labels in self._loader():
            loss = self._optimize(features, labels)
            self.step += 1
            epoch_ends = self.step % self.batches.steps_per_epoch == 0
            self._report(loss)
            if epoch_ends:
                self._log_epoch(self._evaluate())
            if self.stop.agreed() and self.step < self.batches.steps:
                return self._leave("stopped")
            if epoch_ends or (self.options.checkpoint_every and self.step % self.options.checkpoint_every == 0):
                self._save()
        return self._leave("done")

    def _optimize(self, features: torch.Tensor, labels: torch.Tensor) -> float:
        """One step. Returns the mean loss over the global batch."""
        time.sleep(self.options.step_delay)
        size = self.batches.size_of(self.step + 1)
        logits = self.model(features.to(self.world.device))
        loss = functional.cross_entropy(logits, labels.to(self.world.device), reduction="sum") / size
        self.optimizer.zero_grad()
        train.collective()
        # DDP averages gradients over the ranks; the sum over the global batch is what does not depend on their number.
        (loss * self.world.size).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(self.world.total(loss.detach()).item())

    def _evaluate(self) -> Score:
        """Loss and accuracy on held-out samples, each rank taking its share of them."""
        first = self.options.samples
        with train.phase("eval", _EVALUATION_LIMIT), torch.inference_mode():
            share = range(first + self.world.rank, first + _HELD_OUT, self.world.size)
            features, labels = (rows.to(self.world.device) for rows in self.data.rows(share))
            logits = self.net(features)
            loss = functional.cross_entropy(logits, labels, reduction="sum")
            right = (logits.argmax(dim=1) == labels).sum()
            sums = self.world.total(torch.stack([loss, right.to(loss.dtype)]))
        return Score(*(sums / _HELD_OUT).tolist())

    def _loader(self) -> Iterator[Any]:
        slices = list(self.batches.slices(self.world.rank, self.world.size, after=self.step))
        return iter(
            DataLoader(
                self.data,  # type: ignore[arg-type]
                batch_sampler=slices,
                num_workers=self.options.num_workers,
                pin_memory=self.world.device.type == "cuda",
            )
        )

    def _resume(self) -> int:
        """The step to go on from."""
        if not self.options.resume and not environment.is_restart():
            moved = self.checkpoints.start_over()
            self._say(f"[TRAIN] not resuming; the old checkpoints are in {moved}" if moved else "[TRAIN] not resuming")
            return 0
        loaded = self.checkpoints.load(map_location=self.world.device)
        if loaded is None:
            return 0
        _refuse_change(loaded.state["options"], self.options.that_must_not_change(), loaded.path)
        self.net.load_state_dict(loaded.state["net"])
        self.optimizer.load_state_dict(loaded.state["optimizer"])
        self._say(f"[TRAIN] resumed after step {loaded.step} from {loaded.path}")
        return loaded.step

    def _save(self) -> Path:
        state = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        return self.checkpoints.save(self.step, {**state, "options": self.options.that_must_not_change()})

    def _leave(self, outcome: Literal["stopped", "done"]) -> None:
        path = self._save()
        if outcome == "done":
            score = self._evaluate()
            self._say(f"[DONE] steps={self.step} loss={score.loss:.8f} accuracy={score.accuracy:.4f} checkpoint={path}")
        else:
            asked = self.stop.requested_by
            self._say(f"[TRAIN] stopped after step {self.step}, as rank {asked} was asked to; saved in {path}")
        self.stop.close()
        self.world.close()
        train.result(outcome, self.step, path)

    def _report(self, loss: float) -> None:
        steps, epoch = self.batches.steps, (self.step - 1) // self.batches.steps_per_epoch + 1
        train.progress(step=self.step, total_steps=steps, epoch=epoch, loss=loss)
        if self.step % _LOG_EVERY == 0 or self.step == 1:
            self._say(f"[TRAIN] epoch {epoch}/{self.options.epochs} step {self.step}/{steps} loss={loss:.6f}")

    def _log_epoch(self, score: Score) -> None:
        epoch = self.step // self.batches.steps_per_epoch
        self._say(f"[EPOCH] {epoch}/{self.options.epochs} loss={score.loss:.6f} accuracy={score.accuracy:.4f}")

    def _say(self, line: str) -> None:
        if self.world.is_first:
            print(line, flush=True)


def _refuse_change(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    changed = [f"--{name} {saved.get(name)} (now {value})" for name, value in now.items() if saved.get(name) != value]
    if changed:
        raise train.Refused(
            f"the checkpoint {path} was saved with {', '.join(changed)}. Give the same, another --output-dir, or "
            "--no-resume to start over."
        )
