"""Crash to next step: a rank is killed with -9 again and again, with our settings and with torchrun's own.

Prints the median, how many crashes were recovered from, and the ratio. CRASHES=20 by default.
"""

from __future__ import annotations

import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CRASHES = int(os.environ.get("CRASHES", "20"))
LIMIT = 60.0  # a crash that has not led to a new step by then counts as not recovered
BIN = Path(sys.executable).parent
SMOKE = ["-m", "orchestra.train.smoke", "--epochs", "400", "--checkpoint-every", "5", "--step-delay", "0.05"]
STEP = re.compile(rb"\[TRAIN\] epoch \d+/\d+ step (\d+)/")


class Training:
    """A training command whose steps are watched."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        os.set_blocking(self._output, False)
        self.home = env["ORCHESTRA_HOME"]

    @property
    def _output(self) -> int:
        if self.process.stdout is None:
            raise RuntimeError("the output is not piped")
        return self.process.stdout.fileno()

    def printed(self) -> bytes:
        """What was printed since the last look."""
        try:
            return os.read(self._output, 1 << 20)
        except BlockingIOError:
            return b""

    def next_step(self, limit: float) -> float | None:
        """Seconds until the next step is printed; None when it takes too long or the training has ended."""
        begun = time.monotonic()
        while time.monotonic() - begun < limit:
            if STEP.search(self.printed()):
                return time.monotonic() - begun
            if self.process.poll() is not None:
                return None
            time.sleep(0.01)
        return None

    def ranks(self) -> list[int]:
        """Main processes of the ranks."""
        marker, found = f"ORCHESTRA_HOME={self.home}".encode(), []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                env = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            is_rank = any(variable.startswith(b"LOCAL_RANK=") for variable in env)
            if marker in env and is_rank and b"orchestra.train.smoke" in words and b"rank" not in words:
                found.append(int(entry.name))
        return found

    def end(self) -> None:
        """Ends everything."""
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for pid in self.ranks():
            os.kill(pid, signal.SIGKILL)


def crash(make_command: list[str], env: dict[str, str], crashes: int) -> list[float | None]:
    """Kills a random rank `crashes` times; seconds to the next step each, None where there was none."""
    times: list[float | None] = []
    training: Training | None = None
    for _ in range(crashes):
        if training is None:
            training = Training(make_command, env)
            if training.next_step(120) is None:
                raise RuntimeError("the training did not start")
        time.sleep(random.uniform(0.3, 1.0))
        training.printed()
        victims = training.ranks()
        if victims:
            os.kill(random.choice(victims), signal.SIGKILL)
            time.sleep(0.1)
            training.printed()
        times.append(training.next_step(LIMIT))
        if times[-1] is None:
            training.end()
            training = None
    if training is not None:
        training.end()
    return times


def main() -> None:
    """Both ways, then the comparison."""
    results: dict[str, list[float | None]] = {}
    for name in ("orchestra", "torchrun"):
        with tempfile.TemporaryDirectory() as folder:
            env = os.environ | {"OMP_NUM_THREADS": "1", "ORCHESTRA_HOME": folder, "PYTHONUNBUFFERED": "1"}
            env["PATH"] = f"{BIN}{os.pathsep}{env['PATH']}"
            if name == "torchrun":
                env["ORCHESTRA_OUTPUT_DIR"] = f"{folder}/out"
                endpoint = ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=x"]
                command = [str(BIN / "torchrun"), *endpoint, "--nproc-per-node=2", f"--max-restarts={CRASHES}", *SMOKE]
            else:
                command = [
                    str(BIN / "orchestra"),
                    "run",
                    "--procs",
                    "2",
                    "--max-restarts",
                    str(CRASHES),
                    "--",
                    "python",
                    *SMOKE,
                ]
            results[name] = crash(command, env, CRASHES)
            if name == "orchestra":
                subprocess.run([str(BIN / "orchestra"), "delete", "smoke", "--purge"], env=env, check=False)
    medians = {}
    for name, times in results.items():
        good = [seconds for seconds in times if seconds is not None]
        medians[name] = statistics.median(good) if good else float("nan")
        spread = f"median {medians[name]:.1f} s, worst {max(good):.1f} s" if good else "never"
        print(f"{name:<10} recovered {len(good)} of {len(times)}, {spread}")
    if not math.isnan(medians["torchrun"]):
        print(f"ratio orchestra / torchrun's defaults: {medians['orchestra'] / medians['torchrun']:.2f}")


if __name__ == "__main__":
    main()
