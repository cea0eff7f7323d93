"""Checkpoints on a real disk, with real tensors."""

import logging
import random
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.train.ranks import environment
from orchestra.train import Checkpoints, Refused, SaveFailed, init
from orchestra.train.batches import Batches

pytestmark = pytest.mark.torch


def state(value: int) -> dict[str, Any]:
    import torch

    return {"weights": torch.full((1000,), float(value)), "note": f"step {value}"}


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).save(3, state(3))
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert (loaded.step, loaded.path, loaded.state["note"]) == (3, path, "step 3")
    assert loaded.state["weights"].sum() == 3000
    assert (tmp_path / "latest").resolve() == path


def test_only_the_last_few_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, state(step))
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000003", "step-00000004", "latest", "fence"}


def test_a_damaged_checkpoint_is_set_aside_by_name_and_the_one_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, state(step))
    file = tmp_path / "step-00000002" / "state.pt"
    file.write_bytes(file.read_bytes()[:-100] + bytes(100))
    (tmp_path / "tmp-step-00000003-1").mkdir()
    with caplog.at_level(logging.WARNING):
        loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert loaded.step == 1
    assert "checkpoint step-00000002 is not used and now called incomplete-step-00000002: state.pt is" in caplog.text
    assert not list(tmp_path.glob("tmp-*"))


def test_the_same_step_saved_by_a_later_run_is_the_newer_one(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(2, state(2))
    again = Checkpoints(tmp_path)
    path = again.save(2, state(20))
    assert path.name == "step-00000002.1"
    assert again.save(2, state(99)) == path
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert loaded.state["note"] == "step 20"


def test_starting_over_moves_the_old_ones_out_of_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for number in (1, 2):
        Checkpoints(folder).save(9, state(9))
        assert Checkpoints(folder).start_over() == tmp_path / f"checkpoints.old-{number}"
        assert Checkpoints(folder).load() is None
    assert Checkpoints(folder).start_over() is None


def test_a_disk_that_is_full_raises_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limit[1]))  # Python turns the signal into "File too large"
    try:
        with pytest.raises(SaveFailed, match=r"checkpoint of step 2 not written to .*: .*File too large"):
            checkpoints.save(2, state(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000001", "latest", "fence"}


def test_a_process_killed_at_any_moment_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    program = Path(__file__).with_name("killed_while_saving.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "checkpoints"), str(seed), "20"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"newest=(\d+) killed-while-saving=(\d+)", done.stdout)
    assert found
    assert int(found[1]) > 0
    assert int(found[2]) > 0, "no round was killed in the middle of a save: the test showed nothing"


def test_order_is_a_function_of_seed_and_step_and_processes_only_slice_it() -> None:
    batches = Batches(samples=10, batch=4, epochs=2, seed=7)
    alone = list(batches.slices(0, 1))
    assert [len(batch) for batch in alone] == [4, 4, 2, 4, 4, 2]
    for epoch in (alone[:3], alone[3:]):
        assert sorted(sample for batch in epoch for sample in batch) == list(range(10))
    assert alone[:3] != alone[3:]
    assert list(batches.slices(0, 1, after=4)) == alone[4:]
    for whole, first, second in zip(alone, batches.slices(0, 2), batches.slices(1, 2), strict=True):
        assert sorted(whole) == sorted(first + second)


def test_an_output_folder_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match=r"output folder .*/file/out cannot be made: Not a directory"):
        init(tmp_path / "file" / "out")
