"""Saves in a loop and is killed, round after round; after each round the newest checkpoint must be whole.

Its arguments: a folder, a seed, a number of rounds. One process that has imported torch once, and forks for each round.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from orchestra.train import Checkpoints

_NUMBERS = 2_000_000


def save_on(folder: Path, times: int = 1 << 60) -> None:
    """Save one step after another. Step n holds nothing but n."""
    checkpoints = Checkpoints(folder, keep=2)
    loaded = checkpoints.load()
    step = loaded.step if loaded else 0
    for _ in range(times):
        step += 1
        checkpoints.save(step, {"numbers": torch.full((_NUMBERS,), step, dtype=torch.int32)})


def main() -> None:
    """Play the rounds."""
    folder, rounds = Path(sys.argv[1]), int(sys.argv[3])
    chance = random.Random(int(sys.argv[2]))
    torch.set_num_threads(1)
    newest = drafts = 0
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        save_on(folder, times=2)
        os._exit(0)
    os.waitpid(child, 0)
    pace = time.monotonic() - begun  # on a busy machine everything takes longer, also what is to be interrupted
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            save_on(folder)
        time.sleep(chance.uniform(0.1, 2.0) * pace)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        drafts += any(folder.glob("tmp-step-*"))
        loaded = Checkpoints(folder).load()
        if loaded:
            assert bool((loaded.state["numbers"] == loaded.step).all()), f"{loaded.path} is a mixture"
            assert loaded.step >= newest, f"step {newest} was there and is gone; now {loaded.step}"
            newest = loaded.step
        assert not list(folder.glob("incomplete-*")), "a rename published something incomplete"
    print(f"newest={newest} killed-while-saving={drafts}")


if __name__ == "__main__":
    main()
