"""A training script that uses the library: all ranks stop at one agreed step, and go on from it."""

import time

import torch
import version  # type: ignore[import-not-found]

from orchestra.train import Stop, init, progress, result

world = init("out", seed=1)
saved = world.output_dir / "state.pt"
first = int(torch.load(saved)["step"]) if saved.exists() else 0
stop = Stop()
print(f"version {version.N} goes on from {first}", flush=True)
for step in range(first + 1, 100_000):
    time.sleep(0.05)
    world.total(torch.ones(1))
    progress(step=step, total_steps=100_000)
    if stop.agreed():
        if world.is_first:
            torch.save({"step": step}, saved)
        stop.close()
        result("stopped", step, saved)
        break
world.close()
