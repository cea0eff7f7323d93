"""A training on the testbed's nodes that goes only as far as the test lets it (a number in a file of its output folder),
so that no fault comes too early or too late, however slow the machine is; and what a test sees of it.
"""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.waiting import wait_until

Json = dict[str, Any]
SLOW = 240.0
STEPS = 32
LOSS = re.compile(r"\[DONE\] steps=(\d+) loss=([0-9.]+)")
RESUMED = re.compile(r"\[TRAIN\] resumed after step (\d+)")
AGENT_PORT = 29599
OPTIONS = ["--samples", "3072", "--batch", "192", "--epochs", "2", "--checkpoint-every", "2"]
GATED = """
import os, sys, time
from pathlib import Path
from orchestra.train.options import parse
from orchestra.train.smoke.options import Options
from orchestra.train.smoke.training import Trainer

folder, attempt = Path(os.environ["ORCHESTRA_OUTPUT_DIR"]), os.environ["ORCHESTRA_ATTEMPT"]

def allowed():
    for name in ("gate-" + attempt, "gate"):
        try:
            return int((folder / name).read_text())
        except (OSError, ValueError):
            continue
    return 0

class Gated(Trainer):
    def _leave(self, outcome):
        time.sleep(float(os.environ.get("SLOW_SAVE", 0)) if outcome == "stopped" else 0)
        return super()._leave(outcome)

    def _optimize(self, *batch):
        while self.step >= allowed():
            time.sleep(0.05)
        return super()._optimize(*batch)

Gated(parse(Options, sys.argv[1:], program="gated")).run()
"""
QUICK = {"nodeLostSeconds": 5, "gracePeriodSeconds": 5}
COMMAND = ["python", "-c", GATED, *OPTIONS]


def uid_of(site: Any, name: str) -> str:
    return str(site.cluster.api.get(site.path("torchrunjob", name))["metadata"]["uid"])


def report(pod: Json) -> Json:
    """What a worker's agent says; nothing while it cannot be reached."""
    address = pod["status"].get("podIP")
    if not address or pod["status"]["phase"] != "Running":
        return {}
    with (
        contextlib.suppress(OSError, ValueError),
        urllib.request.urlopen(f"http://{address}:{AGENT_PORT}/progress", timeout=2) as answer,
    ):
        found: Json = json.load(answer)
        return found
    return {}


def step(site: Any, name: str, attempt: int = 0) -> int:
    """The highest step that any worker of the newest attempt reports; -1 before the first."""
    here = site.pods(name)
    newest = max([attempt, *(number(pod) for pod in here)])
    reports = [report(pod) for pod in here if number(pod) == newest]
    return max((one["progress"].get("step") or 0 for one in reports if one.get("progress")), default=-1)


def number(pod: Json) -> int:
    return int(pod["metadata"]["labels"]["torchrun.ai/attempt"])


def world(site: Any, name: str) -> int:
    """How many workers train together, as their agents tell it."""
    return sum(
        any(rank["state"] == "running" for rank in report(pod).get("ranks", {}).values()) for pod in site.pods(name)
    )


def reach(site: Any, name: str, least: int, attempt: int = 0) -> None:
    until(site, name, f"step {least}", lambda: step(site, name, attempt) >= least)


def until(site: Any, name: str, what: str, condition: Callable[[], object]) -> None:
    """Wait for it while the job lives: one that has failed says why at once."""

    def holds() -> object:
        said = site.status(name)
        assert said.get("phase") != "Failed", f"{said}\n{site.operator_log()[-4000:]}"
        return condition()

    wait_until(f"{name}: {what}", holds, timeout=SLOW, interval=0.3)


def let(site: Any, name: str, step: int, attempt: int | None = None) -> None:
    """Let the job (or one attempt of it) train up to this step."""
    file = folder_of(site, name) / ("gate" if attempt is None else f"gate-{attempt}")
    draft = file.with_suffix(".draft")
    draft.write_text(str(step))
    draft.rename(file)


def folder_of(site: Any, name: str) -> Path:
    """The job's output folder, on this machine."""
    claim = f"/api/v1/namespaces/{site.namespace}/persistentvolumeclaims/{name}-checkpoints"
    bound = lambda: (site.cluster.api.find(claim) or {"spec": {}})["spec"].get("volumeName")  # noqa: E731
    volume = wait_until(f"the claim of {name}", bound, timeout=SLOW)
    return Path(site.cluster.api.get(f"/api/v1/persistentvolumes/{volume}")["spec"]["hostPath"]["path"])


def worker(site: Any, name: str, index: int) -> Json:
    """The newest worker of this index."""
    here = [pod for pod in site.pods(name) if pod["metadata"]["labels"]["torchrun-node-index"] == str(index)]
    return max(here, key=number)


def finish(site: Any, name: str, expected: float) -> Json:
    let(site, name, STEPS)
    status: Json = site.phase(name, "Succeeded", "Failed", timeout=SLOW)
    assert status["phase"] == "Succeeded", f"{status}\n{site.operator_log()[-4000:]}"
    found = [LOSS.search(site.log(pod["metadata"]["name"])) for pod in site.pods(name)]
    steps, loss = next((int(one[1]), float(one[2])) for one in found if one)
    assert steps == STEPS
    assert loss == pytest.approx(expected, abs=1e-4)
    return status
