"""GPT-2 124M from scratch: tokens a second, and the loss after the same steps, beside a plain nanoGPT loop.

    python benchmarks/gpt_pretrain.py [--steps 500] [--batch 64] [--modes bf16,fp8]

The anchor is nanoGPT as it is written: autocast to bf16, exact GELU, PyTorch's attention and cross-entropy, fused
AdamW, torch.compile. Ours is the trainer itself (`orchestra.train.gpt`), with its data files, progress and log. Both
begin with the same weights and see the same sequences. Without a GPU a tiny model is used, and the ratio is that of the
trainer to the plain loop, in tokens a second of CPU time.
"""

import argparse
import dataclasses
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from orchestra.train.gpt.options import Options
from orchestra.train.gpt.training import Trainer, learning_rate

_WARM_UP = 10
_NAMES = (
    ("tokens", "wte"),
    ("positions", "wpe"),
    ("attention_norm", "ln_1"),
    ("mlp_norm", "ln_2"),
    ("attention.qkv", "attn.c_attn"),
    ("attention.out", "attn.c_proj"),
    ("mlp.up", "mlp.c_fc"),
    ("mlp.down", "mlp.c_proj"),
)


class PlainBlock(nn.Module):
    """nanoGPT's block, without bias and dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(width, 3 * width, bias=False), "c_proj": nn.Linear(width, width, bias=False)}
        )
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, 4 * width, bias=False), "c_proj": nn.Linear(4 * width, width, bias=False)}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and MLP."""
        rows, length, width = x.shape
        query, key, value = (
            part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attn["c_attn"](self.ln_1(x)).split(width, dim=2)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attn["c_proj"](seen.transpose(1, 2).contiguous().view(rows, length, width))
        added: torch.Tensor = x + self.mlp["c_proj"](functional.gelu(self.mlp["c_fc"](self.ln_2(x))))
        return added


class Plain(nn.Module):
    """nanoGPT's model."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.wte = nn.Embedding(options.vocab_size, options.n_embd)
        self.wpe = nn.Embedding(options.block_size, options.n_embd)
        self.blocks = nn.ModuleList(PlainBlock(options.n_embd, options.n_head) for _ in range(options.n_layer))
        self.norm = nn.LayerNorm(options.n_embd, bias=False)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        x = self.wte(inputs) + self.wpe(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.wte.weight)
        loss: torch.Tensor = functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        return loss


def corpus(folder: Path, options: Options, tokens: int) -> None:
    """Ids that can be learned in part: each follows from the one before, or is drawn anew, few of them often."""
    chance = np.random.default_rng(11)
    for name, size in (
        ("train.bin", tokens),
        ("val.bin", 10 * options.batch_size * options.block_size),
    ):
        chains = 4096 if size > 1 << 20 else 64
        length = -(-size // chains)
        current = np.zeros(chains, dtype=np.int64)
        rows = np.empty((length, chains), dtype=np.uint16)
        for at in range(length):
            fresh = (options.vocab_size ** chance.random(chains)).astype(np.int64) - 1
            follows = (current * 31 + 7 + chance.integers(0, 4, chains)) % options.vocab_size
            current = np.where(chance.random(chains) < 0.6, follows, fresh)
            rows[at] = current
        rows.T.ravel()[:size].tofile(folder / name)


def plain(trainer: Trainer, weights: dict[str, torch.Tensor]) -> tuple[float, float]:
    """The anchor. Returns tokens a second and the validation loss."""
    options, device = trainer.options, trainer.world.device
    model = Plain(options).to(device)
    model.load_state_dict(weights)
    raw, model_call = model, torch.compile(model) if device.type == "cuda" else model
    groups = [
        {"params": [p for p in raw.parameters() if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in raw.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=(options.beta1, options.beta2), fused=fused)
    autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=fused)
    clock = Clock(device, options)
    for step in range(options.max_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(options, step)
        inputs, targets = trainer._batch(trainer.data, trainer.order.share(step, options.batch_size, 0, 1))
        with autocast:
            loss: Any = model_call(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(raw.parameters(), options.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.tick(step)
        if (step + 1) % options.log_every == 0 or step == 0:
            print(f"nanoGPT step {step + 1} loss={float(loss.detach()):.5f}", flush=True)
    total = 0.0
    with torch.no_grad(), autocast:
        for batch in range(options.eval_batches):
            rows = [
                row % len(trainer.held_out)
                for row in range(batch * options.batch_size, (batch + 1) * options.batch_size)
            ]
            total += float(model_call(*trainer._batch(trainer.held_out, rows)))
    return clock.speed(), total / options.eval_batches


class Clock:
    """Tokens a second after the first steps, which compile."""

    def __init__(self, device: torch.device, options: Options) -> None:
        self._device, self._options = device, options
        self._begun = 0.0
        self._last = 0.0

    def tick(self, step: int) -> None:
        """After a step."""
        if step in (_WARM_UP - 1, self._options.max_steps - 1):
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            # On the CPU what counts is the work done: others may be using the machine.
            now = time.monotonic() if self._device.type == "cuda" else time.process_time()
            self._begun, self._last = self._last, now

    def speed(self) -> float:
        """Tokens a second."""
        options = self._options
        return (options.max_steps - _WARM_UP) * options.batch_size * options.block_size / (self._last - self._begun)


class Timed(Trainer):
    """The trainer, with a clock on its steps."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.clock = Clock(self.world.device, options)
        self.first_weights = {name: value.detach().clone() for name, value in self.placed.net.state_dict().items()}

    def _optimize(self) -> Any:
        result = super()._optimize()
        self.clock.tick(self.step)
        return result


def translated(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our names to nanoGPT's."""
    renamed = {}
    for name, value in weights.items():
        for ours, theirs in _NAMES:
            name = name.replace(ours, theirs)
        renamed[name] = value
    return renamed


def gradients_off(trainer: Trainer, weights: dict[str, torch.Tensor]) -> None:
    """How far both first gradients are from those in fp32, before anything is compiled or trained."""
    inputs, targets = trainer._batch(trainer.data, list(range(4)))
    anchor = Plain(trainer.options).to(trainer.world.device)
    anchor.load_state_dict(weights)

    def norm_of(*, bf16: bool) -> dict[str, torch.Tensor]:
        anchor.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=bf16):
            loss = anchor(inputs, targets)
        loss.backward()
        print(f"  loss {'bf16' if bf16 else 'fp32'}: {float(loss.detach()):.5f}")
        return {name: value.grad.clone() for name, value in anchor.named_parameters() if value.grad is not None}

    torch.set_float32_matmul_precision("highest")
    exact, theirs = norm_of(bf16=False), norm_of(bf16=True)
    torch.set_float32_matmul_precision("high")
    loss = trainer.placed.net(inputs, targets).loss / targets.numel()
    loss.backward()
    print(f"  loss ours: {float(loss.detach()):.5f}")
    ours = {name: value.grad for name, value in trainer.placed.net.named_parameters() if value.grad is not None}
    ours = translated(ours)
    for name, found in (("nanoGPT bf16", theirs), ("orchestra", ours)):
        off = {part: float((found[part] - exact[part]).norm() / exact[part].norm()) for part in exact}
        worst = max(off, key=lambda part: off[part])
        middle = sorted(off.values())[len(off) // 2]
        print(f"  gradients of {name} against fp32: median {middle:.4f}, worst {off[worst]:.4f} ({worst})")
    trainer.placed.net.zero_grad()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--modes", default="")
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    gpu = torch.cuda.is_available()
    torch.set_float32_matmul_precision("high")
    if not gpu:
        torch.set_num_threads(1)
    small = {"vocab_size": 512, "block_size": 64, "n_layer": 3, "n_head": 4, "n_embd": 96}
    sizes: dict[str, Any] = {} if gpu else small
    steps = asked.steps or (500 if gpu else 60)
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            data_dir=folder,
            output_dir=f"{folder}/out",
            batch_size=asked.batch or (64 if gpu else 8),
            max_steps=steps,
            warmup_steps=min(100, steps // 5),
            eval_every=0,
            eval_batches=5,
            checkpoint_every=0,
            log_every=50,
            **sizes,
        )
        corpus(Path(folder), options, steps * options.batch_size * options.block_size + 2 * options.block_size)
        modes = (asked.modes or ("bf16,fp8" if gpu else "fp32")).split(",")
        rows = []
        weights: dict[str, torch.Tensor] = {}
        trainer: Timed | None = None
        for mode in modes:
            chosen = dataclasses.replace(options, output_dir=f"{folder}/{mode}", fp8=mode == "fp8")
            trainer = Timed(chosen)
            weights = translated(trainer.first_weights)
            if gpu:
                print(mode)
                gradients_off(trainer, weights)
            trainer.run()
            rows.append((f"orchestra, {mode}", trainer.clock.speed(), trainer._validation_loss))
            if asked.profile:
                profile(trainer)
        if trainer is None:
            raise SystemExit("no mode was asked for")
        torch._dynamo.reset()
        torch.backends.cuda.enable_flash_sdp(True)
        torch.backends.cuda.enable_mem_efficient_sdp(True)
        anchor = plain(trainer, weights)
        print(f"\n{steps} steps of {options.batch_size} x {options.block_size} tokens")
        print(f"{'':24}{'tokens/s':>12}{'ratio':>8}{'val loss':>10}{'difference':>12}")
        for name, speed, loss in [("nanoGPT", *anchor), *rows]:
            print(f"{name:24}{speed:12.0f}{speed / anchor[0]:8.2f}{loss:10.4f}{loss - anchor[1]:+12.4f}")
        if not math.isfinite(anchor[1]):
            raise SystemExit("the anchor diverged")


def profile(trainer: Trainer) -> None:
    """Where the time of three steps goes."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with profiled(activities=[ProfilerActivity.CUDA]) as result:
        for _ in range(3):
            Trainer._optimize(trainer)
        torch.cuda.synchronize()
    print(result.key_averages().table(sort_by="cuda_time_total", row_limit=22, max_name_column_width=70))


if __name__ == "__main__":
    main()
