"""A router that never chooses one expert on one rank, under DDP and under FSDP2; two processes, one after the other.

Its arguments: a folder with the data, and three free ports, one for each training. The one under FSDP2 is resumed.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from orchestra.train.gpt.options import Options
from orchestra.train.gpt.training import Trainer


def main() -> None:
    """Train twice, and once more."""
    folder = Path(sys.argv[1])
    for port, (parallel, steps) in zip(sys.argv[2:], (("ddp", 9), ("fsdp", 6), ("fsdp", 9)), strict=True):
        os.environ["MASTER_PORT"] = port
        trainer = Trainer(
            Options(
                data_dir=str(folder),
                output_dir=str(folder / parallel),
                vocab_size=30,
                block_size=16,
                n_layer=2,
                n_head=2,
                n_embd=16,
                n_experts=4,
                top_k=1,
                batch_size=8,
                gradient_accumulation=2,
                max_steps=steps,
                lr_decay_steps=9,
                warmup_steps=0,
                learning_rate=0.01,
                eval_every=0,
                eval_batches=1,
                checkpoint_every=3,
                log_every=1,
                parallel=parallel,
                consolidate=True,
            )
        )
        if trainer.world.rank == 0:
            for block in trainer.placed.net.blocks:
                experts: Any = block.mlp
                experts.preference[3] = -1e9
        trainer.run()
    if trainer.world.is_first:
        saved = torch.load(folder / "fsdp" / "current_ckpt.pt", weights_only=True)
        print("whole", saved["step"], tuple(saved["model"]["blocks.0.mlp.up"].shape), flush=True)


if __name__ == "__main__":
    main()
