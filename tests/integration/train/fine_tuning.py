"""A tiny Llama and its data, made by the example's own script, and fine-tunings of it by real processes."""

import re
import subprocess
import sys
from pathlib import Path

from integration.train.ranks import environment

SFT = [sys.executable, "-m", "orchestra.train.sft"]
TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node=2",
    "-m",
    "orchestra.train.sft",
]
SECONDS = 600.0


def make_tiny(folder: Path) -> Path:
    """The model, tokenizer and data."""
    script = Path(__file__).parents[3] / "examples" / "tiny_llm.py"
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environment(), capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    return folder


def flags(tiny: Path, out: Path, *more: str) -> list[str]:
    """What all fine-tunings here have in common: 3 epochs of 4 steps."""
    return [
        *("--model-local-dir", str(tiny / "model"), "--dataset_path", str(tiny), "--local_files_only"),
        *("--add_special_tokens", "--output_dir", str(out), "--max-length=64", "--epochs=3", "--lr=0.01"),
        *("--lora-rank=4", "--checkpoint-every=2", "--micro-batch=4", *more),
    ]


def by_hand(command: list[str], *more: str) -> str:
    """Run to the end without an agent. Returns the output."""
    done = subprocess.run([*command, *more], env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def losses(output: str) -> dict[int, float]:
    """The loss of each step that was printed."""
    return {int(step): float(loss) for step, loss in re.findall(r"\[TRAIN\] .* step (\d+)/\d+ loss=(\S+)", output)}


def validation(output: str) -> dict[int, float]:
    """The validation loss of each epoch that was printed."""
    return {int(epoch): float(loss) for epoch, loss in re.findall(r"\[EPOCH\] (\d+)/\d+ loss=(\S+)", output)}
