"""The fine-tuning itself."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from orchestra import train
from orchestra.train import environment
from orchestra.train.batches import Batches, refuse_uneven
from orchestra.train.sft import documents, hub, model
from orchestra.train.sft.attention import lay_out
from orchestra.train.sft.meter import Meter, Reading
from orchestra.train.sft.options import Options
from orchestra.train.sft.outputs import Outputs, Score
from orchestra.train.sft.parallel import Native, Parallel
from orchestra.train.sft.rows import Rows

_EVALUATION_LIMIT = 3600.0
_LOADING_LIMIT = 3600.0


class Trainer:
    """One fine-tuning on one rank."""

    def __init__(self, options: Options) -> None:
        self.options = options
        hub.adopt_token()
        self.world = train.init(options.output_dir, seed=options.seed)
        refuse_uneven(options.batch, self.world.size)
        self.folder = self.world.output_dir / options.run_name
        self.metrics: train.Metrics | None = None
        with train.phase("load", _LOADING_LIMIT):
            self.tokenizer = hub.load_tokenizer(options)
            loss_of = model.make(options, self.world.device)
            self.train_rows, self.validation_rows = self._read(loss_of.inner.get_input_embeddings().num_embeddings)
            self.batches = Batches(len(self.train_rows), options.batch, options.epochs, options.seed)
            self.parallel = self._parallel(loss_of)
        self.outputs = Outputs(self.folder, self.world)
        self.checkpoints = train.Checkpoints(self.folder / "checkpoints", asynchronous=True)
        self.scores: list[Score] = []
        self.meter = Meter(self._report, lagging=self.world.device.type == "cuda")
        self.step = self._resume()
        self.metrics = train.Metrics(self.folder, config=vars(options), first=self.world.is_first, after_step=self.step)
        self.stop = train.Stop()
        self._say_what_is_trained()

    def run(self) -> None:
        """Train to the end, or to the step at which a stop is agreed."""
        if not self._evaluate_if_due():
            return self._leave("stopped")
        self.meter.resume()
        for everyone in self.batches.slices(0, 1, after=self.step):
            loss = self._optimize(everyone)
            self.step += 1
            self.meter.passed(self.step, loss, self.train_rows.tokens(everyone))
            if self.stop.agreed() and self.step < self.batches.steps:
                return self._leave("stopped")
            if not self._evaluate_if_due():
                return self._leave("stopped")
            every = self.options.checkpoint_every
            if self._epoch_ends or (every and self.step % every == 0):
                self._save(wait=False)
                self.meter.resume()
        return self._leave("done")

    @property
    def _epoch_ends(self) -> bool:
        return self.step > 0 and self.step % self.batches.steps_per_epoch == 0

    def _optimize(self, everyone: list[int]) -> torch.Tensor:
        """One step on the rows of all ranks. Returns the mean loss over the targets of the global batch."""
        time.sleep(self.options.step_delay)
        rows = everyone[self.world.rank :: self.world.size]
        targets = max(1, self.train_rows.targets(everyone))
        total = torch.zeros((), device=self.world.device)
        size = self.options.micro_batch
        pieces = math.ceil(self.options.batch / self.world.size / size)
        for number in range(pieces):
            some = rows[number * size : (number + 1) * size]
            layout = lay_out(self.train_rows.batch(some, size=size), self.world.device)
            if self.options.lora_dropout:  # a function of seed, step and row, not of what was drawn before
                torch.manual_seed(hash((self.options.seed, self.step, *some)) % (1 << 62))
            last = number == pieces - 1
            train.collective()
            with self.parallel.accumulating(last):
                loss = self.parallel.loss(layout) / targets
                self.parallel.backward(loss, last)
            total += loss.detach()
        self.parallel.update(self._learning_rate())
        summed: torch.Tensor = self.world.total(total)
        return summed

    def _learning_rate(self) -> float:
        rising = max(1, math.ceil(self.options.warmup * self.batches.steps))
        if self.step < rising:
            return self.options.lr * (self.step + 1) / rising
        done = (self.step - rising) / max(1, self.batches.steps - rising)
        return self.options.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))

    def _evaluate_if_due(self) -> bool:
        """After an epoch: validate, write the model, point `best`. False: a stop was agreed meanwhile."""
        epoch = self.step // self.batches.steps_per_epoch
        if not self._epoch_ends or len(self.scores) >= epoch:
            return True
        self.meter.flush()
        score = self._evaluate(epoch)
        if score is None:
            return False
        self.scores.append(score)
        self._log(score.step, {"val/loss": score.loss, "val/perplexity": score.perplexity})
        self.outputs.write_epoch(score, self.parallel, self.tokenizer)
        best = self.outputs.point_best(self.scores)
        self._say(
            f"[EPOCH] {epoch}/{self.options.epochs} loss={score.loss:.6f} perplexity={score.perplexity:.4f} best={best}"
        )
        return True

    def _evaluate(self, epoch: int) -> Score | None:
        """Loss over all validation rows, or None where a stop is agreed on the way. All ranks pass as many points."""
        rows, size = self.validation_rows, self.options.micro_batch
        share = range(self.world.rank, len(rows), self.world.size)
        points = math.ceil(math.ceil(len(rows) / self.world.size) / size)
        total = torch.zeros((), device=self.world.device)
        self.parallel.loss_of.eval()
        try:
            with train.phase("eval", _EVALUATION_LIMIT), torch.no_grad():
                for point in range(points):
                    some = list(share[point * size : (point + 1) * size])
                    total += self.parallel.loss(lay_out(rows.batch(some, size=size), self.world.device))
                    if self.stop.agreed():
                        return None
        finally:
            self.parallel.loss_of.train()
        loss = float(self.world.total(total).item()) / max(1, rows.targets(range(len(rows))))
        return Score(epoch, self.step, loss, math.exp(min(loss, 700.0)))

    def _read(self, vocabulary: int) -> tuple[Rows, Rows]:
        """Train and validation rows: rank 0 turns the documents into tokens, all ranks map the result."""
        sources = documents.find(self.options)
        encoder = documents.Encoder(self.tokenizer, vocabulary, self.options)
        facts = [sources.fingerprint(), self.options.tokenizer, str(self.options.max_length)]
        name = documents.digest(*facts, str(self.options.add_special_tokens), repr(self.tokenizer.chat_template))
        kept = {part: self.folder / "data" / f"{name}-{part}" for part in ("train", "validation")}
        problem = None
        if self.world.is_first:
            try:
                for part, folder in kept.items():
                    if not folder.exists():
                        documents.prepare(folder, sources, encoder, part == "validation")
            except (train.Refused, OSError) as error:
                problem = str(error)
        problem = self._told_by_first(problem)
        if problem:
            raise train.Refused(problem)
        if encoder.cut:
            self._say(f"[DATA] {encoder.cut} documents were longer than --max-length {self.options.max_length}: cut")
        training, validation = (documents.load(folder) for folder in kept.values())
        if not len(validation):
            training, validation = self._held_out(training)
        if not len(training):
            raise train.Refused(f"the dataset {self.options.dataset_path} holds no documents to train on.")
        pack = self.options.packing
        rows = [Rows(part, self.options.max_length, packing=pack) for part in (training, validation)]
        fill = rows[0].tokens(range(len(rows[0]))) / (len(rows[0]) * self.options.max_length)
        self._say(
            f"[DATA] {len(training)} documents in {len(rows[0])} rows, {fill:.1%} full; "
            f"{len(validation)} documents to validate on"
        )
        return rows[0], rows[1]

    def _held_out(self, every: Any) -> tuple[Any, Any]:
        order = np.random.default_rng(self.options.seed).permutation(len(every))
        count = max(1, round(self.options.val_fraction * len(every))) if self.options.val_fraction else 0
        if count >= len(every):
            raise train.Refused(f"{len(every)} documents are too few to hold any out: give --val-path.")
        return every.subset(np.sort(order[count:])), every.subset(np.sort(order[:count]))

    def _told_by_first(self, word: str | None) -> str | None:
        if self.world.size == 1:
            return word
        words: list[Any] = [word]
        torch.distributed.broadcast_object_list(words, src=0, device=self.world.device)
        told: str | None = words[0]
        return told

    def _parallel(self, loss_of: model.LossOf) -> Parallel:
        if self.options.parallel == "deepspeed":
            from orchestra.train.sft.zero import Zero

            return Zero(loss_of, self.options, self.world)
        return Native(loss_of, self.options, self.world)

    def _resume(self) -> int:
        """The step to go on from."""
        if not self.options.resume and not environment.is_restart():
            moved = self.checkpoints.start_over()
            self._say(f"[TRAIN] not resuming; the old checkpoints are in {moved}" if moved else "[TRAIN] not resuming")
            return 0
        loaded = self.parallel.load(self.checkpoints)
        if loaded is None:
            return 0
        notes = loaded.state
        _refuse_change(notes["options"], self.options.that_must_not_change(), loaded.path)
        self.scores = [Score(*score) for score in notes["scores"]]
        self._say(f"[TRAIN] resumed after step {loaded.step} from {loaded.path}")
        return loaded.step

    def _save(self, *, wait: bool) -> Path | None:
        notes = {"options": self.options.that_must_not_change(), "scores": [list(score) for score in self.scores]}
        return self.parallel.save(self.checkpoints, self.step, notes, wait)

    def _leave(self, outcome: Literal["stopped", "done"]) -> None:
        self.meter.flush()
        path = self._save(wait=True)
        if outcome == "done":
            self._merge()
            best = min(self.scores, key=lambda score: score.loss)
            self._say(
                f"[DONE] steps={self.step} loss={self.scores[-1].loss:.8f} best=epoch-{best.epoch} "
                f"perplexity={best.perplexity:.4f} in {self.folder}"
            )
        else:
            asked = self.stop.requested_by
            self._say(f"[TRAIN] stopped after step {self.step}, as rank {asked} was asked to; saved in {path}")
        self.checkpoints.close()
        if self.metrics is not None:
            self.metrics.close()
        self.stop.close()
        self.world.close()
        train.result(outcome, self.step, path)

    def _merge(self) -> None:
        if self.options.merge and self.world.is_first:
            with train.phase("save", _LOADING_LIMIT):
                adapter = self.outputs.best(self.scores) / "rank-0"
                merged = self.folder / "merged"
                model.write_merged(merged, adapter, self.options, self.parallel.loss_of.dtype)
                self.tokenizer.save_pretrained(merged)

    def _report(self, now: Reading) -> None:
        steps, epoch, speed = (
            self.batches.steps,
            (now.step - 1) // self.batches.steps_per_epoch + 1,
            now.tokens_per_second,
        )
        train.progress(step=now.step, total_steps=steps, epoch=epoch, loss=now.loss, tokens_per_second=speed)
        line = f"epoch {epoch}/{self.options.epochs} step {now.step}/{steps} loss={now.loss:.6f} tokens/s={speed:.0f}"
        self._say(f"[TRAIN] {line}")
        self._log(now.step, {"train/loss": now.loss, "train/tokens_per_second": speed})

    def _say_what_is_trained(self) -> None:
        parameters = list(self.parallel.loss_of.parameters())
        trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        share = trained / max(1, sum(parameter.numel() for parameter in parameters))
        what = f"an adapter of rank {self.options.lora_rank}" if self.options.lora_rank else "all weights"
        print(
            f"[DDP] rank {self.world.rank} of {self.world.size}: {self.options.parallel}, {self.world.backend} on "
            f"{self.world.device}; {what}: {trained:,} parameters ({share:.2%}) of {self.options.model}",
            flush=True,
        )

    def _say(self, line: str) -> None:
        if self.metrics is not None:
            self.metrics.say(line)
        elif self.world.is_first:
            print(line, flush=True)

    def _log(self, step: int, values: dict[str, float]) -> None:
        if self.metrics is not None:
            self.metrics.log(step, values)


def _refuse_change(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    changed = [f"--{name} {saved.get(name)} (now {value})" for name, value in now.items() if saved.get(name) != value]
    if changed:
        raise train.Refused(
            f"the checkpoint {path} was saved with {', '.join(changed).replace('_', '-')}. Give the same, another "
            "--output-dir, or --no-resume to start over."
        )
