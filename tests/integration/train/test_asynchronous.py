"""Saves that the training does not wait for, with the real writer process."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.train.ranks import environment
from orchestra.train import Checkpoints, Refused, SaveFailed, last_complete, staging
from testbed.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # many processes: on a busy machine it takes its time

APART = Path(__file__).with_name("saving_apart.py")


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    made = Checkpoints(tmp_path / "checkpoints", keep=2, asynchronous=True)
    yield made
    made.close()


def state(value: float) -> dict[str, Any]:
    import torch

    weights = torch.full((1000, 33), value)
    return {"net": {"a": weights, "tied": weights, 3: torch.tensor(value, dtype=torch.bfloat16)}, "list": [1, (2, "x")]}


def test_what_is_saved_is_what_was_there_at_the_call(checkpoints: Checkpoints, tmp_path: Path) -> None:
    import torch

    content = state(1.0)
    checkpoints.save_async(1, content, exports=[tmp_path / "current_ckpt.pt"])
    content["net"]["a"].fill_(7)
    path = checkpoints.wait()
    assert path is not None
    assert path == last_complete(tmp_path / "checkpoints") == (tmp_path / "checkpoints" / "latest").resolve()
    for saved in (torch.load(path / "state.pt", weights_only=True), torch.load(tmp_path / "current_ckpt.pt")):
        assert bool((saved["net"]["a"] == 1).all())
        assert saved["net"]["a"].data_ptr() == saved["net"]["tied"].data_ptr(), "tied weights are stored once"
        assert saved["net"][3].dtype == torch.bfloat16
        assert saved["list"] == [1, (2, "x")]
    assert (path / "state.pt").stat().st_size < 1000 * 33 * 4 + 10_000
    assert checkpoints.times.first_stall is not None
    assert checkpoints.times.save is not None


def test_saves_follow_each_other_grow_and_the_last_few_and_the_best_are_kept(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    import torch

    for step, metric in ((1, 5.0), (2, 3.0), (3, 4.0), (4, float("nan")), (5, 3.5)):
        checkpoints.save_async(step, {"grows": torch.full((step * 5000,), step)}, metric=metric)
    assert checkpoints.save(6, {"now": 6}).name == "step-00000006"
    folder = tmp_path / "checkpoints"
    assert {path.name for path in folder.glob("step-*")} == {f"step-0000000{step}" for step in (2, 5, 6)}
    assert (folder / "best").resolve().name == "step-00000002"
    assert checkpoints.times.later_stall is not None


def test_a_failed_save_is_told_by_the_next_call_and_leaves_the_last_checkpoint(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    checkpoints.save_async(1, state(1))
    checkpoints.wait()
    blocked = tmp_path / "checkpoints" / "tmp-latest"
    blocked.mkdir()  # in the way of the new link
    checkpoints.save_async(2, state(2))
    with pytest.raises(SaveFailed, match=r"step 2 not written to .*checkpoints: .*tmp-latest"):
        checkpoints.save_async(3, state(3))
    blocked.rmdir()
    assert checkpoints.save(4, state(4)).name == "step-00000004"


def test_a_writer_that_is_killed_is_noticed(checkpoints: Checkpoints) -> None:
    assert checkpoints._writer is not None
    os.kill(checkpoints._writer.pid, signal.SIGKILL)
    checkpoints.save_async(1, state(1))
    with pytest.raises(SaveFailed, match=r"the writer process \d+ has ended"):
        checkpoints.wait()


def test_without_memory_for_a_copy_it_saves_at_once_and_says_so(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(staging, "available_memory", lambda: 1 << 10)
    assert not checkpoints.reserve(1 << 20)
    assert "saved synchronously: rank 0: 1 MiB to stage a checkpoint, and 0 MiB of memory are free" in caplog.text
    checkpoints.save_async(1, state(1))
    assert checkpoints.wait() == last_complete(checkpoints.folder)


def test_a_grace_period_too_short_for_a_save_is_warned_of_once(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ORCHESTRA_GRACE_PERIOD_SECONDS", "0")
    checkpoints.save(1, state(1))
    assert "the grace period of 0 s is shorter than a step" in caplog.text


def test_what_an_older_attempt_still_publishes_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRA_JOB", "same")
    older, folder = Checkpoints(tmp_path, keep=2), tmp_path
    older.save(10, state(10))
    newer = Checkpoints(tmp_path)
    loaded = newer.load()
    assert loaded is not None
    assert loaded.step == 10
    with pytest.raises(SaveFailed, match=r"nothing more is published into .*: job same, attempt 1 .* took over"):
        older.save(20, state(20))
    monkeypatch.setattr("orchestra.train.fencing.Fence.check", lambda *_: None)  # it may not even look
    late = Checkpoints(tmp_path)
    late._fence, late._newest = older._fence, None
    assert late.save(30, state(30)).exists()
    assert (folder / "step-00000030" / "manifest.json").exists()
    monkeypatch.undo()
    assert last_complete(tmp_path) == folder / "step-00000010"
    newer.save(11, state(11))
    assert last_complete(tmp_path) == folder / "step-00000011"
    assert not (folder / "step-00000030").exists(), "cleared away by the attempt that counts"


def test_a_second_job_on_the_same_folder_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    program = "import sys; from orchestra.train import Checkpoints; Checkpoints(sys.argv[1]).load(); print('held', flush=True); sys.stdin.read()"
    first = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment() | {"ORCHESTRA_JOB": "first"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(Refused, match=r"job first, attempt 1 \(process \d+ on .*\) is training into"):
            Checkpoints(tmp_path).load()
        first.communicate()
    assert Checkpoints(tmp_path).load() is None


def test_the_writer_ends_with_the_training_even_if_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, torch; from orchestra.train import Checkpoints; c = Checkpoints(sys.argv[1], asynchronous=True);"
        "c.save_async(1, {'a': torch.ones(3_000_000)}); print(c._writer.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as training:
        assert training.stdout is not None
        writer = int(training.stdout.readline())
        training.kill()
    wait_until("the end of the writer", lambda: not running(writer), timeout=240)
    assert last_complete(tmp_path) == tmp_path / "step-00000001", "it finished what it had in hand"


def running(process: int) -> bool:
    """Is it there, and more than a dead process that nobody has collected?"""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def apart(processes: int, *arguments: str, fails: bool = False) -> str:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={processes}",
            str(APART),
            *arguments,
        ],
        env=environment() | {"ORCHESTRA_BACKEND": "gloo"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_shards_saved_by_three_ranks_are_resumed_by_two_and_in_one_file_by_one(tmp_path: Path) -> None:
    import torch

    saved = float(re.findall(r"total=(\S+)", apart(3, "save", str(tmp_path)))[0])
    folder = tmp_path / "checkpoints" / "step-00000002"
    assert {path.name for path in folder.iterdir()} == {"manifest.json", *(f"shard-0000{rank}.pt" for rank in range(3))}
    plain = torch.load(tmp_path / "current_ckpt.pt", weights_only=True)
    assert sum(float(tensor.double().sum()) for tensor in plain["model"].values()) == pytest.approx(saved, rel=1e-9)
    assert plain["model"]["0.weight"].shape == (13, 7)
    after = float(re.findall(r"total=(\S+)", apart(2, "load", str(tmp_path)))[0])
    assert after == pytest.approx(alone(plain), rel=1e-6)
    assert after != pytest.approx(saved, rel=1e-6)


def alone(saved: dict[str, Any]) -> float:
    """The third step in this process, from the plain file."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.GELU(), torch.nn.Linear(13, 3))
    model.load_state_dict(saved["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    names = [name for name, _ in model.named_parameters()]
    moments = {number: saved["optimizer"]["state"][name] for number, name in enumerate(names)}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    model(torch.linspace(-1, 1, 7 * 5).view(5, 7)).square().mean().backward()
    optimizer.step()
    return sum(float(parameter.detach().double().sum()) for parameter in model.parameters())


def test_a_sharded_state_on_nodes_that_share_no_folder_is_refused_at_once(tmp_path: Path) -> None:
    output = apart(2, "nodes", str(tmp_path), fails=True)
    assert "is not one folder for all nodes (rank 1 does not see what rank 0 writes)" in output
    assert "storage.checkpoints" in output


def test_one_rank_whose_disk_is_full_fails_the_save_on_all_and_says_which(tmp_path: Path) -> None:
    output = apart(2, "save", str(tmp_path), "1", fails=True)
    assert output.count("SaveFailed: checkpoint of step 2 not written to") >= 2
    assert "rank 1 could not write: " in output
    assert last_complete(tmp_path / "checkpoints") is None
