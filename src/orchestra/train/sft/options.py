"""The fine-tuning trainer's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestra.train.options import option
from orchestra.train.world import Refused


@dataclass(frozen=True)
class Options:
    """Fine-tune a causal language model of Hugging Face; with --lora-rank, train an adapter for it instead.

    The Hugging Face token is read from the environment only: HF_TOKEN, HUGGINGFACE_HUB_TOKEN or HUGGING_FACE_HUB_TOKEN.
    """

    model_name: str = option("", "the model: a hub id, or a folder")
    model_local_dir: str = option("", "folder of the model; wins over --model-name")
    tokenizer_local_dir: str = option("", "folder of the tokenizer; without it, the model's")
    local_files_only: bool = option(False, "never ask the hub")
    dataset_path: str = option(
        "", "a JSONL file, a folder (train.jsonl, val.jsonl; or saved by `datasets`), or a hub id"
    )
    val_path: str = option("", "JSONL file to validate on; without it, the dataset's own, or a part held out")
    val_fraction: float = option(
        0.05, "part of the documents held out where the dataset has nothing to validate on", least=0
    )
    add_special_tokens: bool = option(False, "put the tokenizer's begin and end tokens around each document")
    max_length: int = option(2048, "tokens in a row; longer documents are cut", least=2)
    packing: bool = option(True, "put several documents into one row; none of them sees the others")
    output_dir: str = option("out", "folder for everything written; ORCHESTRA_OUTPUT_DIR wins over it")
    run_name: str = option("", "name of a folder within it")
    epochs: int = option(3, "how often each document is seen", least=1)
    batch: int = option(8, "rows in a step, over all processes together", least=1)
    micro_batch: int = option(1, "rows that a process computes at once", least=1)
    lr: float = option(2e-4, "highest learning rate", least=0)
    warmup: float = option(
        0.03, "part of the steps in which the learning rate rises; then it falls as a cosine", least=0
    )
    weight_decay: float = option(0.0, "of AdamW", least=0)
    clip: float = option(1.0, "highest norm of the gradient; 0: any", least=0)
    seed: int = option(42, "of order, adapter and dropout", least=0)
    lora_rank: int = option(0, "rank of the adapter; 0: train all weights", least=0)
    lora_alpha: float = option(32.0, "the adapter counts alpha / rank times", least=0)
    lora_dropout: float = option(0.0, "part of the adapter's input dropped in training", least=0)
    lora_targets: str = option("all-linear", "layers that get an adapter, by name, with commas")
    merge: bool = option(False, "at the end, also write the model with the adapter added to its weights")
    parallel: str = option("ddp", "how processes share the work: ddp, fsdp or deepspeed")
    deepspeed_config: str = option("", "DeepSpeed's JSON file, for its zero_optimization and the like")
    dtype: str = option("auto", "fp32, bf16, or auto: bf16 on a GPU")
    fp8: bool = option(False, "keep the frozen weights under an adapter in 8 bits (from compute capability 8.9)")
    compile: bool = option(True, "compile the model layer by layer, on a GPU")
    recompute: bool = option(False, "keep no activations within a layer: less memory, a third more work")
    checkpoint_every: int = option(0, "steps between checkpoints; 0: only after each epoch", least=0)
    resume: bool = option(True, "continue from the newest complete checkpoint; a restart of the same job always does")
    step_delay: float = option(0.0, "seconds to sleep in each step, for demonstrations", least=0)
    local_rank: int = option(-1, "not used: the deepspeed launcher gives it")

    @property
    def model(self) -> str:
        """Where the model comes from."""
        return self.model_local_dir or self.model_name

    @property
    def tokenizer(self) -> str:
        """Where the tokenizer comes from."""
        return self.tokenizer_local_dir or self.model

    def refuse_nonsense(self) -> None:
        """Raise `Refused` for what cannot be meant."""
        if not self.model:
            raise Refused("no model: give --model-name (a hub id or a folder) or --model-local-dir.")
        if not self.dataset_path:
            raise Refused("no data: give --dataset-path (a JSONL file, a folder or a hub id).")
        _one_of("--parallel", self.parallel, ("ddp", "fsdp", "deepspeed"))
        _one_of("--dtype", self.dtype, ("auto", "bf16", "fp32"))
        if self.val_fraction >= 1:
            raise Refused(f"--val-fraction {self.val_fraction:g} leaves nothing to train on: give less than 1.")
        if not self.lora_rank and (self.merge or self.fp8):
            raise Refused(
                f"{'--merge' if self.merge else '--fp8'} needs an adapter: give --lora-rank, for instance 16."
            )
        if self.fp8 and self.parallel != "ddp":
            raise Refused(f"--fp8 works with --parallel ddp, not {self.parallel}: the 8-bit weights are not sharded.")
        if self.deepspeed_config and self.parallel != "deepspeed":
            raise Refused("--deepspeed-config is given without --parallel deepspeed.")

    def that_must_not_change(self) -> dict[str, Any]:
        """What a resumed run must have in common with the one that saved."""
        names = ("batch", "max_length", "packing", "seed", "lr", "epochs", "lora_rank", "lora_alpha", "lora_targets")
        return {name: getattr(self, name) for name in names}


def _one_of(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise Refused(f"{flag} {value} is not known. Known: {', '.join(allowed)}.")
