"""What every rendered job must be able to do, whichever controller runs its pods."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

SMOKE = "python -m orchestra.train.smoke --epochs 2"
LOSS = 0.03854496  # of the same job on the embedded engine, and as a TorchrunJob
_DONE = re.compile(r"\[DONE\] steps=(\d+) loss=([0-9.]+)")
_SCRIPT = """
import os, sys, time, types
from orchestra.train.smoke import training
from orchestra.train.smoke.__main__ import main
print("VERSION one", flush=True)
HOLD, pauses = True, 0
def sleep(seconds):  # some quick steps; then it waits for whatever is done with it, for some minutes
    global pauses
    pauses += 1
    until = time.time() + (600 if HOLD and pauses > 5 else 0)
    while time.time() < until and not os.path.exists(os.environ["ORCHESTRA_STOP_FILE"]):
        time.sleep(0.1)
training.time = types.SimpleNamespace(**{**vars(time), "sleep": sleep})
sys.argv = ["smoke", "--epochs", "2", "--checkpoint-every", "2", "--step-delay", "0.1", "--output-dir", "/out"]
sys.exit(main())
"""


def final(text: str) -> tuple[int, float]:
    """Steps and loss of the run whose log this is."""
    found = _DONE.search(text)
    assert found is not None, text[-3000:]
    return int(found[1]), float(found[2])


def trains_to_its_end(deployed: Any, target: str, kinds: str) -> None:
    """Applied, followed, waited for, looked at and deleted with our verbs, to the loss that it has everywhere."""
    deployed.orchestra("apply", "--target", target, deployed.file("trains", SMOKE))
    followed = deployed.orchestra("logs", "-f", "trains")
    steps, loss = final(followed)
    assert steps == 32
    assert loss == pytest.approx(LOSS, abs=1e-4)
    assert heard(followed) >= {0, 1, 2, 3}, "every rank is heard"
    deployed.orchestra("wait", "trains", "--for", "Succeeded", "--timeout", "180s")
    assert deployed.status("trains")["phase"] == "Succeeded"
    assert "Succeeded" in deployed.orchestra("status", "trains")
    assert "trains" in deployed.orchestra("list")
    assert deployed.orchestra("why", "trains")
    assert heard(deployed.orchestra("logs", "trains", "--rank", "3")) == {3}
    by_role = {role: heard(deployed.orchestra("logs", "trains", "--role", role)) for role in ("launcher", "worker")}
    assert sorted(map(sorted, by_role.values())) == [[0, 1], [2, 3]], "a node each"
    deployed.orchestra("delete", "trains")
    left = deployed.kubectl("get", f"pods,services,configmaps,{kinds}", "-l", "torchrun-job-name=trains")
    assert not left.strip(), "nothing of the job stays"
    assert "trains-checkpoints" in deployed.kubectl("get", "persistentvolumeclaims"), "but what it saved"


def heard(text: str) -> set[int]:
    """The ranks that speak in a log."""
    return {int(rank) for rank in re.findall(r"^\[?r(\d+)\]?", text, re.MULTILINE)}


def edits_and_restarts(deployed: Any, target: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """The manual mode: a new script into all workers, and all ranks run it in the same pods."""
    (deployed.folder / "train.py").write_text(_SCRIPT)
    command = "python /run/orchestra/train.py"
    setup = "sh -c 'while [ ! -f /run/orchestra/train.py ]; do sleep 0.2; done'"
    deployed.orchestra("apply", "--target", target, deployed.file("edits", command, setupCommand=setup))
    deployed.wait_for_pods("edits", 2)
    deployed.orchestra("cp", "edits", "train.py", ":/run/orchestra/train.py")
    deployed.wait_for_step("edits", 4, nodes=2)
    meanwhile()
    before = {pod["metadata"]["uid"] for pod in deployed.pods("edits")}
    newer = _SCRIPT.replace("VERSION one", "VERSION two").replace("HOLD, pauses = True", "HOLD, pauses = False")
    (deployed.folder / "train.py").write_text(newer)
    deployed.orchestra("cp", "edits", "train.py", ":/run/orchestra/train.py")
    deployed.orchestra("restart", "edits")
    text = deployed.orchestra("logs", "-f", "edits")
    assert text.count("VERSION one") == text.count("VERSION two") == 4, "every rank ran the old code and then the new"
    steps, loss = final(text)
    assert steps == 32
    assert loss == pytest.approx(LOSS, abs=1e-4)
    assert {pod["metadata"]["uid"] for pod in deployed.pods("edits")} == before, "in the same pods"
