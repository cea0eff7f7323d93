"""Trains a small GPT that is killed or stopped at random moments, round after round, until it is done; then another.

Its arguments: a folder with the data, a seed, a number of rounds. One process that has imported torch once, and forks for
each round. After each, the newest checkpoint must be whole and no older than what was reported; a stop must lose no
step; and every step's loss must be that of an undisturbed training.
"""

import json
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import torch

from orchestra.train import last_complete
from orchestra.train.gpt.options import Options
from orchestra.train.gpt.training import Trainer

_STEPS = 50
_TOLERANCE = 1e-4


def options(data: Path, out: Path, delay: float) -> Options:
    """A training of about a second."""
    return Options(
        data_dir=str(data),
        output_dir=str(out),
        vocab_size=30,
        block_size=32,
        n_layer=2,
        n_head=2,
        n_embd=32,
        dropout=0.1,
        batch_size=4,
        gradient_accumulation=2,
        max_steps=_STEPS,
        warmup_steps=5,
        learning_rate=3e-3,
        eval_every=20,
        eval_batches=2,
        checkpoint_every=4,
        log_every=1,
        keep=2,
        step_delay=delay,
    )


def in_a_child(data: Path, out: Path, delay: float) -> int:
    """Begin a round. Returns the process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            descriptor = os.open(out.with_suffix(".output"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            Trainer(options(data, out, delay)).run()
            code = 0
        finally:
            os._exit(code)
    return child


def losses(out: Path) -> dict[int, set[float]]:
    """All losses that were ever logged for a step."""
    found: dict[int, set[float]] = {}
    for step, loss in re.findall(r"\[TRAIN\] step (\d+)/.* loss=(\S+)", (out / "log.txt").read_text()):
        found.setdefault(int(step), set()).add(float(loss))
    return found


def main() -> None:
    """Play the rounds."""
    data, rounds = Path(sys.argv[1]), int(sys.argv[3])
    chance = random.Random(int(sys.argv[2]))
    torch.set_num_threads(1)
    undisturbed = data / "undisturbed"
    begun = time.monotonic()
    assert os.waitpid(in_a_child(data, undisturbed, 0), 0)[1] == 0, undisturbed.with_suffix(".output").read_text()
    whole = time.monotonic() - begun
    expected = {step: next(iter(values)) for step, values in losses(undisturbed).items()}
    killed = stopped = finished = ended = in_a_save = 0
    stop, progress, result = data / "stop.json", data / "progress.json", data / "result.json"
    os.environ |= {"ORCHESTRA_STOP_FILE": str(stop), "ORCHESTRA_PROGRESS_FILE": str(progress)}
    os.environ["ORCHESTRA_RESULT_FILE"] = str(result)
    for number in range(rounds):
        out = data / f"out-{finished}"
        for file in (stop, progress, result):
            file.unlink(missing_ok=True)
        before = last_complete(out / "checkpoints")
        child = in_a_child(data, out, whole / _STEPS / 4)
        time.sleep(chance.uniform(0.1, 1.2) * max(1.0, whole))
        gently = chance.random() < 0.4
        if gently:
            stop.write_text("{}")
        os.kill(child, signal.SIGTERM if gently else signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        output = out.with_suffix(".output").read_text()
        newest = last_complete(out / "checkpoints")
        told = json.loads(progress.read_text()).get("checkpointStep", 0) if progress.exists() else 0
        step = int(newest.name[5:13]) if newest else 0
        assert step >= told, f"round {number}: step {told} was reported as saved, and {newest} is the newest"
        assert step >= (int(before.name[5:13]) if before else 0), f"round {number}: {before} is gone"
        assert not list((out / "checkpoints").glob("incomplete-*")), f"round {number}: published incomplete"
        in_a_save += bool(list((out / "checkpoints").glob("tmp-step-*")))
        if result.exists():
            word = json.loads(result.read_text())
            assert status == 0, f"round {number}: {output}"
            assert word["step"] == step, f"round {number}: {word}, but the newest is {newest}"
            stopped += word["state"] == "stopped"
            finished += word["state"] == "done"
        else:
            killed += 1
            assert os.WIFSIGNALED(status), f"round {number}: {output}"
        ended += 1
        logged = losses(out) if (out / "log.txt").exists() else {}
        for at, values in logged.items():
            for value in values:
                assert abs(value - expected[at]) <= _TOLERANCE * expected[at], f"round {number}, step {at}: {values}"
    print(f"rounds={ended} killed={killed} stopped={stopped} finished={finished} drafts-left={in_a_save}")


if __name__ == "__main__":
    main()
