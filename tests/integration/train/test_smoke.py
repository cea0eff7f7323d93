"""The smoke trainer, with real processes: it learns, stops, dies, resumes, and ends with the same loss."""

import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from integration.train.ranks import Ranks, by_hand, final_loss

pytestmark = pytest.mark.torch

SLOWLY = ("--step-delay", "0.1")


def test_two_processes_under_plain_torchrun_learn(undisturbed: str) -> None:
    losses = [float(loss) for loss in re.findall(r"\[TRAIN\] epoch.* loss=(\S+)", undisturbed)]
    assert losses[-1] < losses[0] / 5
    assert re.search(r"\[DDP\] rank 1 of 2: gloo on cpu, global batch 256 = 2 x 128", undisturbed)
    accuracies = [float(accuracy) for accuracy in re.findall(r"\[EPOCH\] .*accuracy=(\S+)", undisturbed)]
    assert len(accuracies) == 2
    assert accuracies[-1] > 0.95
    assert "[DONE] steps=32 " in undisturbed


def test_one_process_without_torchrun_ends_like_two(undisturbed: str, tmp_path: Path) -> None:
    output = by_hand("--output_dir", str(tmp_path / "out"), "--num_workers=1")
    assert final_loss(output) == pytest.approx(final_loss(undisturbed), abs=1e-4)


def test_a_stop_asked_of_one_rank_saves_one_step_on_both_and_nothing_is_lost(undisturbed: str, tmp_path: Path) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    with Ranks(tmp_path / "first", 2, "--output-dir", str(out), "--num-workers=1", *SLOWLY) as ranks:
        ranks[1].wait_for_step(3)
        ranks[1].ask_to_stop()
        asked = time.monotonic()
        assert [rank.exit_code() for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
        assert time.monotonic() - asked < 10
        assert ranks[0].result == ranks[1].result
        step, checkpoint = ranks[0].result["step"], ranks[0].result["checkpoint"]
        assert ranks[0].result["state"] == "stopped"
        assert 3 <= step < 32
        assert Path(checkpoint) == (out / "checkpoints" / "latest").resolve()
        assert f"stopped after step {step}, as rank 1 was asked to" in ranks[0].output
        assert ranks[0].progress["checkpointStep"] == step
    shutil.copytree(out, copy, symlinks=True)

    with Ranks(tmp_path / "second", 2, "--output-dir", str(out)) as ranks:
        assert [rank.exit_code() for rank in ranks] == [0, 0], ranks[0].output
        assert f"resumed after step {step}" in ranks[0].output
        assert final_loss(ranks[0].output) == pytest.approx(final_loss(undisturbed), abs=1e-5)
        assert ranks[1].result | {"checkpoint": ""} == {"state": "done", "step": 32, "checkpoint": ""}
        progress = ranks[1].progress
        assert (progress["step"], progress["totalSteps"], progress["epoch"]) == (32, 32, 2)
        assert progress["collective"] >= 32 - step
        assert progress["etaSeconds"] == 0

    alone = by_hand("--output-dir", str(copy))
    assert f"resumed after step {step}" in alone
    assert final_loss(alone) == pytest.approx(final_loss(undisturbed), abs=1e-4)


def test_a_crash_costs_nothing_beyond_the_last_checkpoint(undisturbed: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Ranks(tmp_path / "first", 2, "--output-dir", str(out), "--checkpoint-every=3", *SLOWLY) as ranks:
        ranks[0].wait_for_step(8)
        ranks[1].process.kill()
        assert ranks[0].exit_code(timeout=30) not in (0, -signal.SIGTERM)
        assert ranks[0].result == {}
    with Ranks(tmp_path / "second", 2, "--output-dir", str(out)) as ranks:
        assert [rank.exit_code() for rank in ranks] == [0, 0], ranks[0].output
        resumed = re.search(r"resumed after step (\d+)", ranks[0].output)
        assert resumed
        assert int(resumed[1]) in (6, 9, 12)
        assert final_loss(ranks[0].output) == pytest.approx(final_loss(undisturbed), abs=1e-5)


def test_a_sigterm_without_a_stop_file_ends_a_rank_at_once_even_within_a_collective(tmp_path: Path) -> None:
    with Ranks(tmp_path, 2, "--output-dir", str(tmp_path / "out"), "--step-delay=0.05") as ranks:
        ranks[0].wait_for_step(2)
        ranks[1].process.send_signal(signal.SIGSTOP)
        time.sleep(1)  # rank 0 now waits for it, deep in gloo, where Python runs no handler
        assert ranks[0].process.poll() is None
        ranks[0].process.send_signal(signal.SIGTERM)
        assert ranks[0].exit_code(timeout=2) == -signal.SIGTERM


def test_a_number_of_processes_that_cannot_share_the_batch_is_refused(tmp_path: Path) -> None:
    with Ranks(tmp_path, 2, "--output-dir", str(tmp_path / "out"), "--batch=5") as ranks:
        assert [rank.exit_code() for rank in ranks] == [2, 2]
        assert "error: 2 processes cannot share a global batch of 5 evenly. Numbers that can: 1, 5." in ranks[0].output
