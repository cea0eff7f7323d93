"""Hugging Face's `Trainer`, stopped and resumed without a loss: one callback, and one function to resume with.

    from orchestra.train.hf import GracefulShutdown, last_complete

    shutdown = GracefulShutdown()
    trainer = Trainer(..., callbacks=[shutdown])
    trainer.train(resume_from_checkpoint=last_complete(args.output_dir))
    if shutdown.stopped:
        return                        # saved; the next start goes on from here

Trainer writes a checkpoint file by file into its final folder, so that a process killed in between leaves half of one
under the name of a whole. The callback writes our manifest when all ranks are done; `last_complete` believes only that.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import Trainer, TrainerCallback

from orchestra.train import environment
from orchestra.train.durable import sync_folder, write_json_durably
from orchestra.train.manifest import MANIFEST, Manifest, Part, crc32, set_folder_aside, what_is_wrong
from orchestra.train.reporting import phase, progress
from orchestra.train.results import result
from orchestra.train.stopping import Stop

_log = logging.getLogger("orchestra.train")
_HALF_AN_HOUR = 1800.0
_NAME = re.compile(r"checkpoint-(\d+)")
_UNEVALUATED = "evaluation-due.json"


class GracefulShutdown(TrainerCallback):  # type: ignore[misc]
    """Stops a `Trainer` after the same step on all ranks when any one of them is asked to, with a checkpoint.

    The ranks exchange their wishes on a CPU group of their own, after each optimizer step, each evaluation batch and
    each save. An evaluation that a stop meets is abandoned, and done again when the training is resumed. Evaluation
    batches must be as many on each rank, which Trainer's own data loader sees to.
    """

    def __init__(self, timeout: float = _HALF_AN_HOUR) -> None:
        self.stopped = False
        """Did the last `train()` end because it was asked to?"""
        self._timeout = timeout
        self._trainer: Any = None
        self._stop: Stop | None = None
        self._ranks: _Ranks | None = None
        self._saved: Path | None = None
        self._evaluation_due = False

    def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """The trainer exists."""
        self._attach()

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Listen from here on."""
        self._attach()
        self.stopped, self._saved, self._evaluation_due = False, None, False
        self._ranks, self._stop = _Ranks(args, self._timeout), Stop(self._timeout)
        progress(step=state.global_step, total_steps=state.max_steps)
        if args.save_total_limit == 1:
            _log.warning("save_total_limit=1 deletes the last complete checkpoint before the next one is: take 2")
        self._evaluation_due = _folder(args, state).joinpath(_UNEVALUATED).exists()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Do the evaluation that a stop cut short in the run before."""
        if not self._evaluation_due or self._trainer is None or self.stopped:
            return
        try:
            metrics = self._trainer._evaluate(None, None)
            self._trainer._determine_best_metric(metrics, None)
        except _EvaluationAbandoned:
            self.stopped = True  # asked again: leave after the first step, which comes next

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """A point that all ranks pass: an optimizer step."""
        progress(step=state.global_step, total_steps=state.max_steps, epoch=state.epoch)
        if self._must_stop() and state.global_step < state.max_steps:
            self._leave(control, state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Nothing more is evaluated, or saved twice, once we leave."""
        if self.stopped:
            self._leave(control, state)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """A point that all ranks pass: a batch of an evaluation within the training."""
        if self._trainer is not None and self._trainer.is_in_train and self._must_stop():
            raise _EvaluationAbandoned

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Make the checkpoint count: everything on disk, then the manifest. Then a point that all ranks pass."""
        if self._ranks is None:
            return
        folder = _folder(args, state)
        with phase("save", self._timeout):
            self._ranks.wait()  # each rank writes files of its own
            if self._ranks.writes:
                if self._evaluation_due:
                    write_json_durably(folder / _UNEVALUATED, {"step": state.global_step})
                write_manifest(folder, state.global_step, args.world_size)
            self._ranks.wait()
        self._saved = folder
        progress(checkpoint_step=state.global_step)
        # Twice, for the first call reads what was asked before this save, which may have taken minutes.
        if (self._must_stop() or self._must_stop()) and state.global_step < state.max_steps:
            self._leave(control, state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Hand the loss on."""
        if logs and "loss" in logs:
            progress(loss=float(logs["loss"]))

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Nothing can be lost any more. Tells the agent of a stop; not of an end: the script may have more to do."""
        if self._stop is not None:
            self._stop.close()
            self._stop = None
        if self.stopped:
            result("stopped", state.global_step, self._saved)

    def _must_stop(self) -> bool:
        return self._stop is not None and (self.stopped or self._stop.agreed())

    def _leave(self, control: Any, state: Any) -> None:
        self.stopped = True
        self._evaluation_due = self._evaluation_due or control.should_evaluate
        control.should_evaluate = False
        control.should_training_stop = True
        control.should_save = self._saved is None or self._saved.name != f"checkpoint-{state.global_step}"

    def _attach(self) -> None:
        """Find the trainer that calls us, and stand around three of its methods.

        It tells its callbacks everything but itself; and only from there can an evaluation be left.
        """
        trainer = _calling_trainer()
        if trainer is None or trainer is self._trainer:
            return
        self._trainer = trainer
        decide, evaluate, save = trainer._maybe_log_save_evaluate, trainer._evaluate, trainer._save_checkpoint
        trainer._maybe_log_save_evaluate = self._unless_abandoned(decide)
        trainer._evaluate = self._evaluating(evaluate)
        trainer._save_checkpoint = _in_phase("save", save, self._timeout)

    def _unless_abandoned(self, decide: Callable[..., None]) -> Callable[..., None]:
        def log_save_evaluate(*arguments: Any, **named: Any) -> None:
            trainer = self._trainer
            try:
                return decide(*arguments, **named)
            except _EvaluationAbandoned:
                trainer.control.should_evaluate = True
                self._leave(trainer.control, trainer.state)
                return decide(*arguments, **named)  # now it saves

        return log_save_evaluate

    def _evaluating(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        announced = _in_phase("eval", evaluate, self._timeout)

        def evaluate_and_remember(*arguments: Any, **named: Any) -> Any:
            metrics = announced(*arguments, **named)
            self._evaluation_due = False
            return metrics

        return evaluate_and_remember


class _EvaluationAbandoned(Exception):
    """Leaves Trainer's evaluation loop, which has no other way out."""


def last_complete(output_dir: str | Path) -> str | None:
    """The newest complete `checkpoint-N` in a folder, the same on all ranks, or None: for `resume_from_checkpoint`.

    Newer ones that are not complete are set aside under another name, with the reason in the log.
    """
    ranks, folder = _Ranks(None, _HALF_AN_HOUR), Path(output_dir)
    with phase("load", _HALF_AN_HOUR):
        return ranks.told(_choose(folder, rename=ranks.rank == 0) if ranks.rank == 0 or not ranks.joined else None)


def write_manifest(folder: Path, step: int, world_size: int) -> None:
    """Bring every file of a folder to disk and write the manifest that names them. Reads them once."""
    folder.joinpath(MANIFEST).unlink(missing_ok=True)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    parts = {path.relative_to(folder).as_posix(): Part(path.stat().st_size, crc32(path)) for path in files}
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for inner in {path.parent for path in files}:
        sync_folder(inner)
    Manifest(step, world_size, environment.attempt(), parts).write(folder)
    sync_folder(folder)


def _choose(folder: Path, rename: bool) -> str | None:
    found = [(int(name[1]), path) for path in folder.glob("checkpoint-*") if (name := _NAME.fullmatch(path.name))]
    for _, path in sorted(found, reverse=True):
        problem = what_is_wrong(path)
        if problem is None:
            return str(path)
        if rename:
            aside = set_folder_aside(path)
            _log.warning("checkpoint %s is not used and now called %s: %s", path.name, aside.name, problem)
    return None


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _in_phase(name: Any, call: Callable[..., Any], limit: float) -> Callable[..., Any]:
    def announced(*arguments: Any, **named: Any) -> Any:
        with phase(name, limit):
            return call(*arguments, **named)

    return announced


def _calling_trainer() -> Any:
    import sys

    frame: FrameType | None = sys._getframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            return caller
        frame = frame.f_back
    return None


class _Ranks:
    """The ranks of a Trainer, on a CPU group whose time limit is a save's."""

    def __init__(self, args: Any, timeout: float) -> None:
        import torch.distributed as dist

        self.joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.joined else int(os.environ.get("RANK", "0"))
        self.writes = bool(args is None or args.should_save)
        """Does this rank write for its node? One does for all, unless each node has a folder of its own."""
        several = self.joined and dist.get_world_size() > 1
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout)) if several else None

    def wait(self) -> None:
        """Until all ranks are here."""
        if self._group is not None:
            import torch.distributed as dist

            dist.barrier(group=self._group)

    def told(self, answer: str | None) -> str | None:
        """Rank 0's answer, on all ranks."""
        if self._group is None:
            return answer
        import torch.distributed as dist

        words: list[Any] = [json.dumps(answer)]
        dist.broadcast_object_list(words, src=0, group=self._group)
        chosen: str | None = json.loads(words[0])
        return chosen
