"""Submit to first step: the embedded engine against bare torchrun, in turn, in one run."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = int(os.environ.get("ROUNDS", "3"))
BIN = Path(sys.executable).parent
SMOKE = ["-m", "orchestra.train.smoke", "--epochs", "1"]
FIRST_STEP = re.compile(r"\[TRAIN\] epoch 1/1 step 1/")


def seconds_to_first_step(command: list[str], env: dict[str, str]) -> float:
    """Seconds from the start of a command to its first training step; waits for its end."""
    begun = time.monotonic()
    first = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as process:
        for line in process.stdout or ():
            if first is None and FIRST_STEP.search(line):
                first = time.monotonic() - begun
    if first is None or process.returncode:
        raise RuntimeError(f"{command} took no step (exit code {process.returncode})")
    return first


def main() -> None:
    """Medians and their ratio."""
    bare, ours = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            env = os.environ | {
                "OMP_NUM_THREADS": "1",
                "ORCHESTRA_HOME": folder,
                "ORCHESTRA_OUTPUT_DIR": f"{folder}/out",
            }
            env["PATH"] = f"{BIN}{os.pathsep}{env['PATH']}"
            bare.append(
                seconds_to_first_step([str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2", *SMOKE], env)
            )
            env.pop("ORCHESTRA_OUTPUT_DIR")
            command = [str(BIN / "orchestra"), "run", "--procs", "2", "--", "python", *SMOKE]
            ours.append(seconds_to_first_step(command, env))
    one, other = statistics.median(bare), statistics.median(ours)
    print(f"bare torchrun    {one:6.2f} s to the first step   ({', '.join(f'{t:.1f}' for t in bare)})")
    print(f"orchestra run    {other:6.2f} s                     ({', '.join(f'{t:.1f}' for t in ours)})")
    print(f"ratio            {other / one:6.2f}")


if __name__ == "__main__":
    main()
