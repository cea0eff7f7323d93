"""Hot reload: from an edit to new code that runs in all workers, before its own imports, against a cold restart.

Run it from the repository: `python benchmarks/hot_reload.py [processes]`. Target: under 1 s.

Both ways in one run, of the same job with the same edit: `sync` with the successors waiting, as `sync -w` keeps them,
and suspend + resume. Measured by the script itself: its first line, before `import torch`, prints the time.
"""

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from builders import a_cpu_queue, a_job
from orchestra.api.engine import LogQuery, Submission
from orchestra.local.engine import LocalEngine
from orchestra.local.home import Home
from orchestra.plan.status import RESTING, status_of

_ROUNDS = 3
_SCRIPT = """\
import time; print(f"version VERSION begins at {time.time():.3f}", flush=True)
import torch
from orchestra.train import Stop, init, progress, result
world = init("out", seed=1)
saved = world.output_dir / "state.pt"
first = int(torch.load(saved)["step"]) if saved.exists() else 0
stop = Stop()
for step in range(first + 1, 1_000_000):
    time.sleep(0.02)
    world.total(torch.ones(1))
    progress(step=step, total_steps=1_000_000)
    if step == first + 1:
        print(f"version VERSION steps at {time.time():.3f}", flush=True)
    if stop.agreed():
        if world.is_first:
            torch.save({"step": step}, saved)
        stop.close()
        result("stopped", step, saved)
        break
world.close()
"""


def times(engine: LocalEngine, version: int, what: str, count: int) -> list[float]:
    """When each rank printed a line; waits until all have."""
    end = time.monotonic() + 300
    while True:
        text = "\n".join(line.text for line in engine.logs("hot", LogQuery()))
        found = [float(one) for one in re.findall(rf"^version {version} {what} at ([\d.]+)$", text, re.MULTILINE)]
        if len(found) >= count:
            return found[-count:]
        if time.monotonic() > end:
            raise SystemExit(f"version {version} never came:\n{text[-3000:]}")
        time.sleep(0.05)


def until(engine: LocalEngine, holds: Callable[[], object]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + 300
    while not holds():
        engine.look()
        if time.monotonic() > end:
            raise SystemExit("it took too long")
        time.sleep(0.05)


def main() -> None:
    """Measure and print."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with tempfile.TemporaryDirectory() as name:
        home, project = Path(name) / "home", Path(name) / "project"
        project.mkdir()
        os.environ["ORCHESTRA_HOME"] = str(home)
        engine, script = LocalEngine(Home(home)), project / "train.py"

        def edit(version: int) -> float:
            script.write_text(_SCRIPT.replace("VERSION", str(version)))
            return time.time()

        edit(1)
        job = a_job("hot", command=["python", "train.py"], numNodes=1, procsPerNode=ranks)
        engine.submit(Submission(job=job, queue=a_cpu_queue(), folder=str(project)))
        times(engine, 1, "steps", ranks)
        until(engine, lambda: status_of(engine.get("hot")).phase == "Running")
        rows, version = [], 1
        try:
            for _ in range(_ROUNDS):
                engine.preload("hot")
                version += 1
                began = edit(version)
                answer = engine.sync("hot")
                if answer is None or answer.state != "reloaded" or answer.cold:
                    raise SystemExit(f"not reloaded: {answer}")
                hot = max(times(engine, version, "begins", ranks)) - began
                hot_step = max(times(engine, version, "steps", ranks)) - began
                version += 1
                began = edit(version)
                engine.suspend("hot")
                until(engine, lambda: status_of(engine.get("hot")).phase in RESTING)
                engine.sync("hot")
                engine.resume("hot", {})
                cold = max(times(engine, version, "begins", ranks)) - began
                cold_step = max(times(engine, version, "steps", ranks)) - began
                until(engine, lambda: status_of(engine.get("hot")).phase == "Running")
                rows.append((hot, cold, hot_step, cold_step))
                phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in answer.seconds.items())
                print(f"  new code {hot:.2f} s (cold {cold:.2f}), first step {hot_step:.2f} s (cold {cold_step:.2f}); "
                      f"{phases}", flush=True)  # fmt: skip
        finally:
            engine.delete("hot", purge=True)
    hot, cold, hot_step, cold_step = (sorted(column)[len(rows) // 2] for column in zip(*rows, strict=True))
    print(f"edit -> new code in {ranks} ranks before its imports, median of {_ROUNDS}: {hot:.2f} s; "
          f"cold restart {cold:.2f} s: {cold / hot:.1f} times faster")  # fmt: skip
    print(
        f"edit -> first step: {hot_step:.2f} s; cold restart {cold_step:.2f} s: {cold_step / hot_step:.1f} times faster"
    )


if __name__ == "__main__":
    main()
