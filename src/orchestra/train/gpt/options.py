"""The GPT trainer's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestra.train.options import option
from orchestra.train.world import Refused


@dataclass(frozen=True)
class Options:
    """Pre-train a GPT on data/train.bin, with one process or many. Values come from the config file, then from here."""

    config: str = option("config/conf.yaml", "file of `option: value` lines; a missing default file is no mistake")
    data_dir: str = option("data", "folder with train.bin and val.bin")
    output_dir: str = option("out", "folder for logs and checkpoints; ORCHESTRA_OUTPUT_DIR wins over it")
    vocab_size: int = option(50304, "ids are below it", least=2)
    token_dtype: str = option("auto", "auto, uint16 or uint32: how wide an id is in the files")
    block_size: int = option(1024, "tokens in a sequence", least=1)
    n_layer: int = option(12, "layers", least=1)
    n_head: int = option(12, "attention heads in a layer", least=1)
    n_embd: int = option(768, "width", least=1)
    dropout: float = option(0.0, "share of activations dropped in training", least=0)
    n_experts: int = option(0, "experts in each layer; 0: a dense model", least=0)
    top_k: int = option(2, "experts that see a token", least=1)
    moe_coef: float = option(0.01, "weight of the auxiliary loss that balances the experts", least=0)
    batch_size: int = option(64, "sequences in a step, over all processes together", least=1)
    gradient_accumulation: int = option(1, "parts in which each process computes its share of a step", least=1)
    max_steps: int = option(2000, "steps of the whole training", least=1)
    learning_rate: float = option(6e-4, "highest learning rate", least=0)
    min_lr: float = option(6e-5, "learning rate at the end of the cosine", least=0)
    warmup_steps: int = option(100, "steps in which the learning rate rises", least=0)
    lr_decay_steps: int = option(0, "step at which the cosine ends; 0: with the training", least=0)
    weight_decay: float = option(0.1, "of matrices; vectors have none", least=0)
    beta1: float = option(0.9, "AdamW's first", least=0)
    beta2: float = option(0.95, "AdamW's second", least=0)
    grad_clip: float = option(1.0, "largest gradient norm; 0: any", least=0)
    eval_every: int = option(250, "steps between evaluations on val.bin; 0: only at the end", least=0)
    eval_batches: int = option(20, "batches of an evaluation", least=1)
    checkpoint_every: int = option(250, "steps between checkpoints; 0: only at the end", least=0)
    keep: int = option(3, "checkpoints that are kept", least=1)
    async_checkpoints: bool = option(True, "write checkpoints in a process of their own while training goes on")
    consolidate: bool = option(False, "with fsdp, make the single files (current_ckpt.pt) too; without it always made")
    log_every: int = option(10, "steps between lines of the log", least=1)
    seed: int = option(1337, "of weights, order and dropout", least=0)
    precision: str = option("auto", "auto, fp32 or bf16; auto: bf16 on a GPU that has it")
    compile: str = option("auto", "auto, yes or no; auto: on a GPU")
    fp8: bool = option(False, "matrix products of the layers in FP8 (compute capability 8.9 or newer)")
    parallel: str = option("ddp", "ddp or fsdp (parameters and optimizer spread over the processes)")
    sample_tokens: int = option(0, "print so many sampled tokens at the end", least=0)
    resume: bool = option(True, "continue from the newest complete checkpoint; a restart of the same job always does")
    step_delay: float = option(0.0, "seconds to sleep in each step, for demonstrations", least=0)

    def __post_init__(self) -> None:
        _one_of(self, "token_dtype", ("auto", "uint16", "uint32"))
        _one_of(self, "precision", ("auto", "fp32", "bf16"))
        _one_of(self, "compile", ("auto", "yes", "no"))
        _one_of(self, "parallel", ("ddp", "fsdp"))
        if self.n_embd % self.n_head:
            raise Refused(f"--n-embd {self.n_embd} is not a multiple of --n-head {self.n_head}")
        if self.n_experts and self.top_k > self.n_experts:
            raise Refused(f"--top-k {self.top_k} is more than --n-experts {self.n_experts}")
        if self.dropout >= 1:
            raise Refused(f"--dropout {self.dropout} leaves nothing")

    def that_must_not_change(self) -> dict[str, Any]:
        """What a resumed run must have in common with the one that saved."""
        names = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "n_experts", "top_k", "batch_size", "seed")
        return {name: getattr(self, name) for name in names}


def _one_of(options: Options, name: str, words: tuple[str, ...]) -> None:
    if getattr(options, name) not in words:
        raise Refused(f"--{name.replace('_', '-')} {getattr(options, name)}: it is one of {', '.join(words)}")
