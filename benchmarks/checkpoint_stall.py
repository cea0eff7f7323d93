"""How long a checkpoint holds up the training: our asynchronous save beside torch.save.

python benchmarks/checkpoint_stall.py [--megabytes 1490]
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from orchestra.train import Checkpoints

_SAVES = 4


def main() -> None:
    """Print stalls and the ratio."""
    parser = argparse.ArgumentParser()
    gpu = torch.cuda.is_available()
    parser.add_argument("--megabytes", type=int, default=1490 if gpu else 300)
    parser.add_argument("--folder", default=None)
    asked = parser.parse_args()
    device = torch.device("cuda" if gpu else "cpu")
    count = 450
    each = asked.megabytes * 1_000_000 // count // 4
    state: dict[str, Any] = {f"tensor {number}": torch.randn(each, device=device) for number in range(count)}
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        plain = []
        for number in range(2):
            begun = time.monotonic()
            with (Path(folder) / f"plain-{number}.pt").open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            plain.append(time.monotonic() - begun)
        checkpoints = Checkpoints(Path(folder) / "checkpoints", keep=1, asynchronous=True)
        begun = time.monotonic()
        checkpoints.reserve(count * each * 4 + count * 64)
        reserved = time.monotonic() - begun
        stalls = []
        for step in range(1, _SAVES + 1):
            if gpu:
                torch.cuda.synchronize()
            begun = time.monotonic()
            checkpoints.save_async(step, state)
            stalls.append(time.monotonic() - begun)
            checkpoints.wait()
        loaded = checkpoints.load()
        if loaded is None or not all(torch.equal(loaded.state[name], tensor.cpu()) for name, tensor in state.items()):
            raise SystemExit("what was loaded is not what was saved")
        saved = checkpoints.times.save or 0.0
        checkpoints.close()
    size = count * each * 4 / 1e9
    print(f"{size:.2f} GB on {device}: torch.save with fsync {min(plain):.2f} s; memory reserved in {reserved:.2f} s")
    later = statistics.median(stalls[1:])
    print(f"stalls: first save {stalls[0] * 1000:.1f} ms, later {later * 1000:.1f} ms; on disk in {saved:.2f} s")
    print(f"ratio: a later save holds the training up {min(plain) / later:.0f} times shorter than torch.save")


if __name__ == "__main__":
    main()
