"""A training script without torch that keeps the worker contract: reports, saves, stops when asked, resumes.

usage: cooperative.py STEPS SECONDS_A_STEP [--crash-at STEP] [--exit-at STEP CODE] [--hang-at STEP]
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

steps, pause = int(sys.argv[1]), float(sys.argv[2])
faults = sys.argv[3:]
folder = Path(os.environ["ORCHESTRA_OUTPUT_DIR"])
rank_folder = Path(os.environ["ORCHESTRA_RANK_DIR"])
saved = folder / "step.json"
stop_file = Path(os.environ["ORCHESTRA_STOP_FILE"])
signal.signal(signal.SIGTERM, lambda *_: None if stop_file.exists() else os._exit(143))


def replace(path: Path, value: dict[str, object]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


def finish(state: str, step: int) -> None:
    replace(saved, {"step": step})
    replace(rank_folder / "result.json", {"state": state, "step": step, "checkpoint": str(saved)})


begin = json.loads(saved.read_text())["step"] if saved.exists() else 0
print(f"begin at {begin}", flush=True)
for step in range(begin + 1, steps + 1):
    if faults and step == int(faults[1]) and not (folder / "faulted").exists():
        (folder / "faulted").touch()
        if faults[0] == "--exit-at":
            sys.exit(int(faults[2]))
        if faults[0] == "--crash-at":
            raise RuntimeError("made to fail")
        time.sleep(3600)
    time.sleep(pause)
    replace(
        rank_folder / "progress.json",
        {
            "time": time.time(),
            "step": step,
            "totalSteps": steps,
            "loss": 1 / step,
            "checkpointStep": begin,
            "etaSeconds": (steps - step) * pause,
        },
    )
    if stop_file.exists():
        print(f"stopped at {step}", flush=True)
        finish("stopped", step)
        sys.exit(0)
finish("done", steps)
print("done", flush=True)
