"""Trainings with Hugging Face's Trainer, one after another in the same two processes: importing it takes seconds.

Its arguments: a folder, and what to run: `ddp` (undisturbed, then stopped at each moment and resumed; at last killed
in the middle of a save), `ddp-after-the-kill` (resumes that one), `fsdp`. The losses of each go to `<name>.json`.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import accelerate.state
import torch
from accelerate.utils import DistributedType
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from orchestra.train.hf import GracefulShutdown, last_complete

RANK = int(os.environ["RANK"])
STOP, RESULT = Path(os.environ["ORCHESTRA_STOP_FILE"]), Path(os.environ["ORCHESTRA_RESULT_FILE"])
SHARDED = {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "state_dict_type": "SHARDED_STATE_DICT"}
_original = accelerate.state.AcceleratorState.__init__


def _with_fsdp_on_the_cpu(self: Any, *arguments: Any, fsdp_plugin: Any = None, **named: Any) -> None:
    # accelerate offers FSDP on accelerators only, though the sharding itself runs on gloo
    _original(self, *arguments, fsdp_plugin=fsdp_plugin, **named)
    if fsdp_plugin is not None:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin


accelerate.state.AcceleratorState.__init__ = _with_fsdp_on_the_cpu


class Numbers(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences that count up, so that there is something to learn."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


class Disturbance(TrainerCallback):  # type: ignore[misc]
    """At one moment rank 1's agent asks for a stop (rank 0's does not), or rank 0 is killed."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        self.batches = 0
        self.losses: dict[int, float] = {}
        self.evaluated: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self.moment == "train" and state.global_step == 1:
            self.ask()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.batches += 1
        if self.moment == "eval":
            self.ask()

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.evaluated.append(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self.moment == "save":
            self.ask()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        if "loss" in logs:
            self.losses[state.global_step] = logs["loss"]

    def ask(self) -> None:
        if RANK == 1 and not STOP.exists():
            STOP.write_text("{}")
            os.kill(os.getpid(), signal.SIGTERM)


class KilledInItsSave(Trainer):  # type: ignore[misc]
    """Dies in the save of step 6, with the model written and the rest not."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.state.global_step == 6:
            self.accelerator.wait_for_everyone()
            os.kill(os.getpid(), signal.SIGKILL)
        super()._save_optimizer_and_scheduler(output_dir)


def training(out: Path, kind: str, moment: str = "", trainer: type[Trainer] = Trainer) -> dict[str, Any]:
    """Train in a folder, from wherever it stands. Returns what is to be compared."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=False)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, attention_dropout=0.1, **shape))
    arguments = TrainingArguments(
        str(out),
        per_device_train_batch_size=4,
        num_train_epochs=1,
        learning_rate=0.01,
        save_steps=3,
        save_total_limit=2,
        eval_strategy="steps",
        eval_steps=4,
        metric_for_best_model="loss",
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **(
            {"fsdp": True, "fsdp_config": {**SHARDED, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}
            if kind == "fsdp"
            else {}
        ),
    )
    disturbance, shutdown = Disturbance(moment), GracefulShutdown()
    trained = trainer(
        model, arguments, train_dataset=Numbers(), eval_dataset=Numbers(), callbacks=[disturbance, shutdown]
    )
    trained.train(resume_from_checkpoint=last_complete(out))
    told = json.loads(RESULT.read_text()) if RESULT.exists() else None
    for file in (STOP, RESULT):
        file.unlink(missing_ok=True)
    return {
        "stopped": shutdown.stopped,
        "step": trained.state.global_step,
        "result": told,
        "evaluated": disturbance.evaluated,
        "evaluationBatches": disturbance.batches,
        "losses": disturbance.losses,
        "folders": sorted(path.name for path in out.iterdir()),
    }


def main() -> None:
    """Run them."""
    folder, what = Path(sys.argv[1]), sys.argv[2]
    seen: dict[str, Any] = {}
    if what == "ddp-after-the-kill":
        seen["resumed"] = training(folder / "killed", "ddp")
    else:
        seen["undisturbed"] = training(folder / f"{what}-undisturbed", what)
        for moment in ("train", "eval", "save"):
            out = folder / f"{what}-{moment}"
            seen[moment] = [training(out, what, moment), training(out, what)]
    if RANK == 0:
        (folder / f"{what}.json").write_text(json.dumps(seen))
    if what == "ddp":
        training(folder / "killed", "ddp", trainer=KilledInItsSave)
    if what == "ddp-after-the-kill":
        sys.argv[2] = "fsdp"
        main()


if __name__ == "__main__":
    main()
