"""A StatefulSet and a Job made from the file of a TorchrunJob, on two real nodes, with the same verbs and numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.torch]

SMOKE = "python -m orchestra.train.smoke --epochs 2"
DONE = re.compile(r"\[DONE\] steps=(\d+) loss=([0-9.]+)")
LOSS = 0.03854496  # of the same job on the embedded engine, and as a TorchrunJob


def final(text: str) -> tuple[int, float]:
    found = DONE.search(text)
    assert found is not None, text[-3000:]
    return int(found[1]), float(found[2])


@pytest.mark.parametrize("target", ["statefulset", "job"])
def test_a_job_trains_to_the_same_loss_without_our_operator_and_with_our_verbs(deployed: Any, target: str) -> None:
    deployed.orchestra("apply", "--target", target, deployed.file("trains", SMOKE))
    followed = deployed.orchestra("logs", "-f", "trains")
    steps, loss = final(followed)
    assert steps == 32
    assert loss == pytest.approx(LOSS, abs=1e-4)
    assert {f"[r{rank}]" for rank in range(4)} <= set(re.findall(r"\[r\d+\]", followed)), "every rank is heard"
    deployed.orchestra("wait", "trains", "--for", "Succeeded", "--timeout", "180s")
    assert deployed.status("trains")["phase"] == "Succeeded"
    assert "trains" in deployed.orchestra("list")
    assert deployed.orchestra("why", "trains")
    deployed.orchestra("delete", "trains")
    left = deployed.kubectl("get", "pods,statefulsets,jobs,services,configmaps", "-l", "torchrun-job-name=trains")
    assert not left.strip(), "nothing of the job stays"
    assert "trains-checkpoints" in deployed.kubectl("get", "persistentvolumeclaims"), "but what it saved"


def test_an_edited_script_runs_after_cp_and_restart_in_the_same_pods(deployed: Any) -> None:
    script = """
import os, sys, time
print("VERSION one", flush=True)
sys.argv = ["smoke", "--epochs", "2", "--checkpoint-every", "2", "--step-delay", sys.argv[1], "--output-dir", "/out"]
from orchestra.train.smoke.__main__ import main
sys.exit(main())
"""
    (deployed.folder / "train.py").write_text(script)
    command = "python /run/orchestra/train.py 0.5"
    setup = "sh -c 'while [ ! -f /run/orchestra/train.py ]; do sleep 0.2; done'"
    deployed.orchestra("apply", "--target", "statefulset",
                       deployed.file("edits", command, setupCommand=setup))  # fmt: skip
    deployed.kubectl("wait", "pods", "-l", "torchrun-job-name=edits", "--for=jsonpath={.status.phase}=Running",
                     "--timeout=180s")  # fmt: skip
    deployed.orchestra("cp", "edits", "train.py", ":/run/orchestra/train.py")
    deployed.wait_for_step("edits", 4, nodes=2)
    before = {pod["metadata"]["uid"] for pod in deployed.pods("edits")}
    (deployed.folder / "train.py").write_text(
        script.replace("VERSION one", "VERSION two").replace("sys.argv[1]", "'0'")
    )
    deployed.orchestra("cp", "edits", "train.py", ":/run/orchestra/train.py")
    deployed.orchestra("restart", "edits")
    text = deployed.orchestra("logs", "-f", "edits")
    assert text.count("VERSION one") == text.count("VERSION two") == 4, "every rank ran the old code and then the new"
    steps, loss = final(text)
    assert steps == 32
    assert loss == pytest.approx(LOSS, abs=1e-4)
    assert {pod["metadata"]["uid"] for pod in deployed.pods("edits")} == before, "in the same pods"


def test_a_statefulset_is_scaled_and_goes_on_from_its_checkpoint(deployed: Any) -> None:
    command = f"{SMOKE} --batch 96 --samples 1920"  # of a size that 2, 4 and 6 processes can share
    deployed.orchestra("apply", "--target", "statefulset",
                       deployed.file("grows", f"{command} --checkpoint-every 2 --step-delay 0.5"))  # fmt: skip
    deployed.wait_for_step("grows", 3, nodes=2)
    shown = deployed.orchestra("exec", "grows", "--rank", "0", "--", "cat", "/proc/1/cmdline")
    assert "agent.pyz" in shown
    deployed.orchestra("scale", "grows", "--nodes", "3")
    deployed.wait_for_step("grows", 6, nodes=3)
    deployed.orchestra("scale", "grows", "--nodes", "1")
    deployed.wait_for_step("grows", 9, nodes=1)
    text = deployed.orchestra("logs", "-f", "grows")
    assert "resum" in text, "it went on, and did not begin anew"
    alone = [sys.executable, *command.split()[1:], "--output-dir", str(deployed.folder / "alone")]
    undisturbed = subprocess.run(alone, capture_output=True, text=True, check=False)
    assert undisturbed.returncode == 0, undisturbed.stderr
    steps, loss = final(text)
    expected = final(undisturbed.stdout)
    assert steps == expected[0]
    assert loss == pytest.approx(expected[1], abs=1e-4)


def test_the_gpt_trainer_runs_unchanged_in_pods(deployed: Any) -> None:
    data = "/run/orchestra/data"
    size = "--vocab-size 30 --block-size 32 --n-layer 2 --n-head 2 --n-embd 32 --batch-size 8 --max-steps 12"
    path = deployed.file(
        "gpt",
        f"python -m orchestra.train.gpt --data-dir {data} --output-dir /out {size} --checkpoint-every 6 --eval-every 6",
        setupCommand=f"python -m orchestra.train.gpt.corpus {data}",
    )
    deployed.orchestra("apply", "--target", "job", path)
    deployed.orchestra("logs", "-f", "gpt")
    deployed.orchestra("wait", "gpt", "--for", "Succeeded", "--timeout", "180s")
    deployed.orchestra("delete", "gpt")


def test_secrets_are_made_used_and_never_shown(deployed: Any) -> None:
    (deployed.folder / ".env").write_text("HF_TOKEN=hunter2\nOTHER='x y'\n")
    deployed.orchestra("secret", "create", "tokens", "--from-env-file", ".env")
    assert "HF_TOKEN, OTHER" in deployed.orchestra("secret", "list")
    assert "hunter2" not in deployed.orchestra("secret", "list")
    deployed.orchestra("secret", "create", "tokens", "--from-env-file", ".env", code=1)
    deployed.orchestra("secret", "create", "tokens", "--from-env-file", ".env", "--replace")
    script = "import os; print('length', len(os.environ['HF_TOKEN']), os.environ['OTHER'])"
    path = deployed.file("uses", ["python", "-c", script], secrets=[{"name": "tokens"}], numNodes=1, launcher="none")
    deployed.orchestra("apply", "--target", "job", path)
    assert "length 7 x y" in deployed.orchestra("logs", "-f", "uses")
    deployed.orchestra("delete", "uses")
    deployed.orchestra("secret", "delete", "tokens")
