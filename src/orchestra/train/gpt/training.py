"""The GPT trainer's training."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Any, Literal

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from orchestra import train
from orchestra.train import environment
from orchestra.train.batches import refuse_uneven
from orchestra.train.gpt.model import Gpt, dropout_keys
from orchestra.train.gpt.options import Options
from orchestra.train.gpt.placing import Placed, bytes_to_stage, clip, optimizer
from orchestra.train.gpt.sampling import Vocabulary, sample

_EVALUATION_LIMIT = 1800.0
_COMPILE_LIMIT = 1800.0


class Trainer:
    """One training on one rank."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.world = train.init(options.output_dir, seed=options.seed)
        refuse_uneven(options.batch_size, self.world.size * options.gradient_accumulation)
        self.data, self.held_out = self._open("train.bin"), self._open("val.bin")
        self.order = train.Order(len(self.data), options.seed)
        self.placed = Placed(options, self.world)
        self.optimizer = optimizer(options, self.placed.net, self.world.device)
        out = self.world.output_dir
        self.checkpoints = train.Checkpoints(
            out / "checkpoints", keep=options.keep, asynchronous=options.async_checkpoints
        )
        writes = self.placed.sharded or self.world.is_first
        self.checkpoints.reserve(bytes_to_stage(self.placed, self.world.size) if writes else 0)
        self.step, self.evaluated, self.goodput = 0, True, train.Goodput()
        resumed = self._resume()
        about = dataclasses.asdict(options)
        self.metrics = train.Metrics(out, config=about, first=self.world.is_first, after_step=self.step)
        self.metrics.say(resumed)
        self.placed.wrap()
        self.stop = train.Stop()
        self._tokens_per_step = options.batch_size * options.block_size
        self._since, self._steps_since = time.monotonic(), 0

    def run(self) -> None:
        """Train to the end, or to the step at which a stop is agreed."""
        if not self.evaluated and not self._evaluate():
            return self._leave("stopped")
        while self.step < self.options.max_steps:
            begun = time.monotonic()
            loss, norm, used = self._optimize()
            self.step += 1
            self.goodput.step(time.monotonic() - begun)
            self.evaluated = not self._due(self.options.eval_every)
            self._report(loss, norm, used)
            if self.stop.agreed() and self.step < self.options.max_steps:
                return self._leave("stopped")
            if not self.evaluated and not self._evaluate():
                return self._leave("stopped")
            if self._due(self.options.checkpoint_every) and self.step < self.options.max_steps:
                self._save_soon()
        return self._leave("done")

    def _optimize(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One step. Returns this rank's part of the loss, the gradient's norm, and how the experts were used."""
        options, size = self.options, self.world.size
        time.sleep(options.step_delay)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(options, self.step)
        samples = self.order.share(self.step, options.batch_size, self.world.rank, size)
        length = len(samples) // options.gradient_accumulation
        loss = torch.zeros((), device=self.world.device)
        used: Any = 0
        for first in range(0, len(samples), length):
            part = samples[first : first + length]
            inputs, targets = self._batch(self.data, part)
            keys = None
            if options.dropout:
                keys = dropout_keys(options.seed, self.step, part, self.world.device)
            if first == 0:
                train.collective()
            with self.placed.part(last=first + length >= len(samples)):
                result = self.placed.model(inputs, targets, keys=keys)
                share = result.loss / self._tokens_per_step
                share = share + options.moe_coef * result.auxiliary / (size * options.gradient_accumulation)
                # The ranks' gradients are averaged; the sum is what does not depend on their number.
                (share * size).backward()
            loss += result.loss.detach()
            used = used + result.used
        norm = clip(self.placed.net.parameters(), options.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss / self._tokens_per_step, norm, used

    def _evaluate(self) -> bool:
        """The loss on held-out sequences, each rank taking its share. False: a stop was agreed, it is to be redone."""
        options, total = self.options, torch.zeros((), device=self.world.device)
        net: Gpt = self.placed.model
        with train.phase("eval", _EVALUATION_LIMIT), torch.no_grad():
            for batch in range(options.eval_batches):
                rows = range(batch * options.batch_size + self.world.rank, (batch + 1) * options.batch_size)
                chosen = [row % len(self.held_out) for row in rows[:: self.world.size]]
                total += net(*self._batch(self.held_out, chosen)).loss
                if self.stop.agreed():
                    return False
        loss = float(self.world.total(total)) / (options.eval_batches * self._tokens_per_step)
        self.evaluated, self._validation_loss = True, loss
        self.metrics.say(f"[EVAL] step {self.step} val_loss={loss:.6f} perplexity={math.exp(min(loss, 50)):.3f}")
        self.metrics.log(self.step, {"val/loss": loss})
        self._since, self._steps_since = time.monotonic(), 0
        return True

    def _state(self) -> dict[str, Any]:
        model, moments = get_state_dict(self.placed.net, self.optimizer)
        return {
            "model": model,
            "optimizer": moments,
            "step": self.step,
            "evaluated": self.evaluated,
            "shape": dataclasses.asdict(self.placed.shape),
            "options": self.options.that_must_not_change(),
            "goodput": self.goodput.state(),
        }

    def _resume(self) -> str:
        """Go on from the newest complete checkpoint. Returns what to say about it."""
        world, options = self.world, self.options
        parameters = sum(parameter.numel() for parameter in self.placed.net.parameters())
        kind = f"{options.n_experts} experts" if options.n_experts else "dense"
        about = (
            f"[GPT] {parameters / 1e6:.2f}M parameters, {kind}, {self.placed.dtype} on {world.device}, {world.size} "
            f"processes ({options.parallel}), batch {options.batch_size} x {options.block_size}, data {len(self.data)}"
        )
        if not options.resume and not environment.is_restart():
            moved = self.checkpoints.start_over()
            return f"{about}; not resuming" + (f", the old checkpoints are in {moved}" if moved else "")
        loaded = self.checkpoints.load(into=self._state)
        if loaded is None:
            return about
        _refuse_change(loaded.state["options"], options.that_must_not_change(), loaded.path)
        set_state_dict(
            self.placed.net,
            self.optimizer,
            model_state_dict=loaded.state["model"],
            optim_state_dict=loaded.state["optimizer"],
        )
        self.step, self.evaluated = loaded.step, bool(loaded.state["evaluated"])
        self.goodput = train.Goodput(loaded.state["goodput"])
        return f"{about}; resumed after step {loaded.step} from {loaded.path}"

    def _save_soon(self) -> None:
        number = self.step // self.options.checkpoint_every
        exports = self._exports(number)
        self.checkpoints.save_async(self.step, self._state(), metric=self._metric(), exports=exports)
        self._drop_old_exports(number)

    def _leave(self, outcome: Literal["stopped", "done"]) -> None:
        if outcome == "done" and not self._due(self.options.eval_every):
            self._evaluate()
        number = self.step // self.options.checkpoint_every if self._due(self.options.checkpoint_every) else None
        path = self.checkpoints.save(self.step, self._state(), metric=self._metric(), exports=self._exports(number))
        self._drop_old_exports(number)
        if outcome == "done":
            self.metrics.say(f"[DONE] steps={self.step} goodput={self.goodput.share():.3f} checkpoint={path}")
            self._print_sample()
        else:
            asked = self.stop.requested_by
            self.metrics.say(f"[GPT] stopped after step {self.step}, as rank {asked} was asked to; saved in {path}")
        self.stop.close()
        self.checkpoints.close()
        # A stop has little time, and a tracker's last points matter less than the checkpoint.
        self.metrics.close(patience=10.0 if outcome == "done" else 1.0)
        self.world.close()
        train.result(outcome, self.step, path)

    def _report(self, loss: torch.Tensor, norm: torch.Tensor, used: torch.Tensor) -> None:
        options = self.options
        self._steps_since += 1
        train.progress(step=self.step, total_steps=options.max_steps)
        if self.step % options.log_every and self.step not in (1, options.max_steps):
            return
        value = float(self.world.total(loss.clone()))
        seconds, steps = time.monotonic() - self._since, self._steps_since
        self._since, self._steps_since = time.monotonic(), 0
        speed = steps * self._tokens_per_step / max(seconds, 1e-9)
        rate, goodput = learning_rate(options, self.step - 1), self.goodput.share()
        utilization = self.placed.utilization(speed)
        train.progress(loss=value, tokens_per_second=speed, goodput=goodput, mfu=utilization)
        line = f"[TRAIN] step {self.step}/{options.max_steps} loss={value:.7f} lr={rate:.3e} norm={float(norm):.3f}"
        numbers = {"train/loss": value, "train/lr": rate, "train/norm": float(norm), "tokens_per_second": speed}
        numbers |= {"goodput": goodput, **({"mfu": utilization} if utilization else {})}
        if options.n_experts:
            least, most = balance(self.world.total(used.clone()))
            line += f" experts={least:.2f}..{most:.2f}"
            numbers |= {"experts/least_used": least, "experts/most_used": most}
        self.metrics.say(line + f" tok/s={speed:.0f}")
        self.metrics.log(self.step, numbers)

    def _print_sample(self) -> None:
        if not self.options.sample_tokens or self.placed.sharded or not self.world.is_first:
            return
        words = Vocabulary(self.options.data_dir)
        self.metrics.say("[SAMPLE] " + words.text(sample(self.placed.net, [0], self.options.sample_tokens)))

    def _open(self, name: str) -> train.TokenFile:
        options = self.options
        width = {"auto": None}.get(options.token_dtype, options.token_dtype)
        path = Path(options.data_dir) / name
        return train.TokenFile(path, vocabulary=options.vocab_size, length=options.block_size, dtype=width)

    def _batch(self, data: train.TokenFile, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = data.batch(rows)
        if self.world.device.type == "cuda":
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        return inputs.to(self.world.device, non_blocking=True), targets.to(self.world.device, non_blocking=True)

    def _exports(self, number: int | None) -> list[Path]:
        if self.placed.sharded and not self.options.consolidate:
            return []
        out = self.world.output_dir
        return [out / "current_ckpt.pt"] + ([out / f"checkpoint_{number}.pt"] if number else [])

    def _drop_old_exports(self, number: int | None) -> None:
        if number is None or not self.world.is_first:
            return
        for old in self.world.output_dir.glob("checkpoint_*.pt"):
            count = old.stem.partition("_")[2]
            if count.isdigit() and int(count) <= number - self.options.keep:
                old.unlink(missing_ok=True)

    def _metric(self) -> float | None:
        """The validation loss, if it is that of this very step."""
        fresh = self.evaluated and (self._due(self.options.eval_every) or self.step == self.options.max_steps)
        return getattr(self, "_validation_loss", None) if fresh else None

    def _due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0


def learning_rate(options: Options, step: int) -> float:
    """Of the step after `step` steps: a rise, then a cosine down to the least."""
    if step < options.warmup_steps:
        return options.learning_rate * (step + 1) / (options.warmup_steps + 1)
    end = options.lr_decay_steps or options.max_steps
    if step >= end:
        return options.min_lr
    done = (step - options.warmup_steps) / max(end - options.warmup_steps, 1)
    return options.min_lr + 0.5 * (1 + math.cos(math.pi * done)) * (options.learning_rate - options.min_lr)


def balance(used: torch.Tensor) -> tuple[float, float]:
    """How the least and the most used expert of any layer compare with an even share (1.0)."""
    shares = used / used.sum(dim=-1, keepdim=True) * used.shape[-1]
    return float(shares.min()), float(shares.max())


def _refuse_change(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    changed = [f"--{name} {saved.get(name)} (now {value})" for name, value in now.items() if saved.get(name) != value]
    if changed:
        raise train.Refused(
            f"the checkpoint {path} was saved with {', '.join(changed).replace('_', '-')}. Give the same, another "
            "--output-dir, or --no-resume to start over."
        )
