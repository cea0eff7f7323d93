"""LoRA fine-tuning in tokens per second: `orchestra.train.sft` against Hugging Face's Trainer with PEFT, in one run.

On a GPU: a Llama of 1B (random weights), adapters of rank 16 on all linear layers, rows of 2048 tokens; then documents
of mixed lengths, counting real tokens only. Without a GPU: a tiny Llama, to see that it runs and how the two compare.

    python benchmarks/lora.py [fixed] [mixed] [fp8] [anchor] [equal] [profile]    # without words: all but the profile
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import torch

from orchestra.train.sft.meter import Reading
from orchestra.train.sft.options import Options
from orchestra.train.sft.training import Trainer as OurTrainer

GPU = torch.cuda.is_available()
LENGTH = 2048 if GPU else 128
ROWS = 8
STEPS, WARM_UP = (30, 12) if GPU else (8, 2)
SHAPE = (
    {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096}
    if GPU
    else {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
)


class Speed(NamedTuple):
    """What a run measured."""

    tokens_per_second: float
    last_loss: float
    gigabytes: float


def make_model(folder: Path) -> None:
    """A Llama with random weights and a tokenizer of one word a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = {"<unk>": 0, "</s>": 1, "<pad>": 2}
    words = special | {f"w{number}": number for number in range(len(special), SHAPE["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>").save_pretrained(folder)  # noqa: S106
    torch.manual_seed(0)
    with torch.device("cuda" if GPU else "cpu"):
        model = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **SHAPE)).to(torch.bfloat16)
    model.save_pretrained(folder)


def write_documents(path: Path, lengths: list[int]) -> None:
    """Documents that count upwards from somewhere in a small vocabulary: there is something to learn."""
    chance = random.Random(1)
    with path.open("w") as file:
        for length in lengths:
            first = chance.randrange(400)
            words = " ".join(f"w{3 + (first + place) % 400}" for place in range(length))
            file.write(json.dumps({"text": words}) + "\n")


def mixed_lengths(total: int) -> list[int]:
    """Lengths as in collections of instructions: most are short, some fill a row."""
    chance, lengths = random.Random(2), list[int]()
    while sum(lengths) < total:
        lengths.append(max(16, min(LENGTH, int(chance.lognormvariate(5.6 if GPU else 3.2, 0.9)))))
    return lengths


class Timed(OurTrainer):
    """Our trainer, watched."""

    def __init__(self, options: Options, profile: bool) -> None:
        self.readings: list[Reading] = []
        self.profiler = torch.profiler.profile() if profile else None
        super().__init__(options)

    def _report(self, now: Reading) -> None:
        self.readings.append(now)
        if self.profiler and now.step == WARM_UP:
            self.profiler.start()
        if self.profiler and now.step == WARM_UP + 3:
            torch.cuda.synchronize()
            self.profiler.stop()
            print_kernels(self.profiler)


def print_kernels(profiler: Any) -> None:
    """Where three steps spent their time on the GPU."""
    kernels = [entry for entry in profiler.key_averages() if entry.self_device_time_total > 0]
    kernels = [entry for entry in kernels if str(entry.device_type).endswith("CUDA")]
    total = sum(entry.self_device_time_total for entry in kernels)
    print(f"kernels: {total / 3e3:.1f} ms a step")
    for entry in sorted(kernels, key=lambda entry: -entry.self_device_time_total)[:28]:
        share = entry.self_device_time_total / total
        print(f"  {share:6.1%} {entry.self_device_time_total / 3e3:8.2f} ms {entry.count // 3:5} x {entry.key[:90]}")


def ours(model: Path, documents: Path, out: Path, *flags: Any, profile: bool = False) -> Speed:
    """Train with `orchestra.train.sft`."""
    more = dict(flags)
    options = Options(
        model_local_dir=str(model),
        dataset_path=str(documents),
        val_path=str(documents.with_name("val.jsonl")),
        output_dir=str(out),
        max_length=LENGTH,
        batch=more.pop("batch", ROWS),
        micro_batch=more.pop("micro_batch", ROWS),
        epochs=1,
        lora_rank=16,
        resume=False,
        **more,
    )
    torch.cuda.reset_peak_memory_stats() if GPU else None
    trainer = Timed(options, profile)
    trainer.run()
    # The median of the steps: the last of an epoch is short, and once in a while the compiler runs again.
    steady = trainer.readings[WARM_UP:]
    speed = statistics.median(reading.tokens_per_second for reading in steady)
    return Speed(speed, steady[-1].loss, torch.cuda.max_memory_allocated() / 1e9 if GPU else 0.0)


def hugging_face(model: Path, documents: Path, out: Path, rows: int) -> Speed:
    """Train with Trainer and PEFT as their guides do."""
    from peft import LoraConfig, get_peft_model
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [json.loads(line)["text"] for line in documents.read_text().splitlines()]
    encoded = [{"input_ids": tokenizer(text)["input_ids"]} for text in texts]
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16 if GPU else torch.float32)
    adapted = get_peft_model(
        loaded, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    moments: list[float] = []

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if GPU:
                torch.cuda.synchronize()
            moments.append(time.monotonic())

    steps, warm_up = (10, 3) if GPU else (STEPS, WARM_UP)
    arguments = TrainingArguments(
        str(out),
        per_device_train_batch_size=rows,
        max_steps=steps,
        learning_rate=2e-4,
        bf16=GPU,
        use_cpu=not GPU,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=1,
    )
    torch.cuda.reset_peak_memory_stats() if GPU else None
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    seen: list[int] = []

    def counted(batch: Any) -> Any:
        seen.append(sum(len(document["input_ids"]) for document in batch))
        return collator(batch)

    trainer = Trainer(adapted, arguments, train_dataset=encoded, data_collator=counted, callbacks=[Watch()])
    trainer.train()
    speed = sum(seen[warm_up:steps]) / (moments[steps - 1] - moments[warm_up - 1])
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return Speed(speed, losses[-1], torch.cuda.max_memory_allocated() / 1e9 if GPU else 0.0)


def packed_equals_apart(model: Path, documents: Path) -> Speed:
    """The loss and gradients of documents that share rows against those of the same documents one by one."""
    from orchestra.train.sft.attention import lay_out
    from orchestra.train.sft.documents import Encoder, Sources, load, prepare
    from orchestra.train.sft.hub import load_tokenizer
    from orchestra.train.sft.model import make
    from orchestra.train.sft.rows import Rows

    options = Options(model_local_dir=str(model), dataset_path=str(documents), max_length=LENGTH, lora_rank=16)
    device = torch.device("cuda" if GPU else "cpu")
    loss_of = make(options, device)
    folder = documents.with_name("few-prepared")
    prepare(folder, Sources([documents], []), Encoder(load_tokenizer(options), SHAPE["vocab_size"], options), False)
    found: list[tuple[float, Any]] = []
    for packing in (True, False):
        rows, total = Rows(load(folder), LENGTH, packing=packing), 0.0
        for row in range(len(rows)):
            layout = lay_out(rows.batch([row], size=1), device)
            loss = loss_of(layout.tokens, layout.positions, layout.labels, layout.attention)
            loss.backward()
            total += float(loss.detach())
        trained = [parameter for parameter in loss_of.parameters() if parameter.requires_grad]
        found.append(
            (
                total,
                torch.cat([parameter.grad.flatten().float() for parameter in trained if parameter.grad is not None]),
            )
        )
        loss_of.zero_grad()
        print(f"packed={packing}: {len(rows)} rows, loss {total:.4f}")
    (together, packed), (apart, single) = found
    difference = float((packed - single).norm() / single.norm())
    print(f"loss differs by {abs(together - apart) / apart:.2e}, gradients by {difference:.2e} of their norm")
    return Speed(0.0, together, 0.0)


def attempt(name: str, run: Any) -> Speed | None:
    """Run one measurement; a failure is told and does not end the others."""
    print(f"== {name}", flush=True)
    begun = time.monotonic()
    try:
        speed: Speed = run()
    except Exception:  # noqa: BLE001 - out of memory is an answer, too
        print("".join(traceback.format_exc().splitlines(keepends=True)[-12:]), flush=True)
        return None
    finally:
        gc.collect()
        torch.cuda.empty_cache() if GPU else None
    print(
        f"== {name}: {speed.tokens_per_second:,.0f} tokens/s, last loss {speed.last_loss:.4f}, peak "
        f"{speed.gigabytes:.0f} GB, took {time.monotonic() - begun:.0f} s",
        flush=True,
    )
    return speed


def main() -> None:
    """Measure, and print a table."""
    words = set(sys.argv[1:]) or {"fixed", "mixed", "fp8", "anchor", "equal"}
    results: dict[str, Speed | None] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        write_documents(folder / "val.jsonl", [LENGTH] * ROWS)
        write_documents(folder / "fixed.jsonl", [LENGTH] * (ROWS * STEPS))
        write_documents(folder / "mixed.jsonl", mixed_lengths(LENGTH * ROWS * STEPS))

        def measure(title: str, kind: str, *flags: Any, profile: bool = False) -> None:
            out = folder / title.replace(" ", "-")
            arguments = (folder / "model", folder / f"{kind}.jsonl", out)
            results[title] = attempt(title, lambda: ours(*arguments, *flags, profile=profile))

        if "equal" in words:
            write_documents(folder / "few.jsonl", mixed_lengths(LENGTH * 3))
            attempt("packed = apart", lambda: packed_equals_apart(folder / "model", folder / "few.jsonl"))
        eight_bits = GPU and "fp8" in words
        for kind in ("fixed", "mixed"):
            if kind not in words:
                continue
            if "anchor" in words:
                for rows in (ROWS,) if kind == "fixed" else (ROWS, 2 * ROWS):
                    arguments = (folder / "model", folder / f"{kind}.jsonl", folder / "hf", rows)
                    title = f"{kind}: Trainer + PEFT, batch {rows}"
                    results[title] = attempt(title, lambda arguments=arguments: hugging_face(*arguments))
            measure(f"{kind}: orchestra", kind, profile="profile" in words)
            if eight_bits:
                measure(f"{kind}: orchestra --fp8", kind, ("fp8", True), profile="profile" in words)
    table(results)


def table(results: dict[str, Speed | None]) -> None:
    """Tokens per second, and the ratio to the better anchor of the same kind."""
    for name, speed in results.items():
        kind = name.split(":")[0]
        anchors = [
            other.tokens_per_second for key, other in results.items() if other and key.startswith(f"{kind}: Trainer")
        ]
        ratio = f"{speed.tokens_per_second / max(anchors):5.2f} x" if speed and anchors else "      -"
        print(f"{name:<40} {speed.tokens_per_second:>9,.0f} tokens/s {ratio}" if speed else f"{name:<40} failed")
    if GPU:
        for kind, goal in (("fixed", 100_000), ("mixed", 80_000)):
            best = max(
                (speed.tokens_per_second for name, speed in results.items() if speed and name.startswith(kind)),
                default=0,
            )
            print(f"goal, {kind}: {goal:,} tokens/s: {'met' if best >= goal else 'missed'} ({best:,.0f})")


if __name__ == "__main__":
    main()
