"""A StatefulSet and a Job made from the file of a TorchrunJob, on two real nodes, with the same verbs and numbers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from .stories import SMOKE, edits_and_restarts, final, trains_to_its_end

pytestmark = [pytest.mark.torch]


@pytest.mark.parametrize("target", ["statefulset", "job"])
def test_a_job_trains_to_the_same_loss_without_our_operator_and_with_our_verbs(deployed: Any, target: str) -> None:
    trains_to_its_end(deployed, target, "statefulsets,jobs")


def test_an_edited_script_runs_after_cp_and_restart_in_the_same_pods(deployed: Any) -> None:
    edits_and_restarts(deployed, "statefulset")


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
