"""The GPT trainer, with real processes: it learns, stops, dies, resumes at another size, and goes on exactly."""

import contextlib
import dataclasses
import random
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.train.ranks import Ranks, environment
from orchestra.train import Refused, last_complete
from orchestra.train.gpt import corpus
from orchestra.train.gpt.options import Options

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # many processes: on a busy machine it takes its time

GPT = [sys.executable, "-m", "orchestra.train.gpt"]
STEPS = 50
TINY = Options(
    vocab_size=30,
    block_size=32,
    n_layer=2,
    n_head=2,
    n_embd=32,
    batch_size=8,
    gradient_accumulation=2,
    dropout=0.1,
    max_steps=STEPS,
    warmup_steps=5,
    learning_rate=3e-3,
    eval_every=20,
    eval_batches=2,
    checkpoint_every=5,
    log_every=1,
    keep=2,
)


def flags(options: Options) -> list[str]:
    """Only what differs from the defaults, as one would type it."""
    changed = {
        field.name: value
        for field in dataclasses.fields(Options)
        if (value := getattr(options, field.name)) != field.default
    }
    return [word for name, value in changed.items() for word in (f"--{name}", str(value))]


def losses(out: Path) -> dict[int, float]:
    """The loss of each step, as the log has it last."""
    found = re.findall(r"\[TRAIN\] step (\d+)/.* loss=(\S+)", (out / "log.txt").read_text())
    return {int(step): float(loss) for step, loss in found}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    assert corpus.write(folder) == 30
    return folder


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trainers of one process can run in this one."""
    import torch

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "ORCHESTRA_OUTPUT_DIR", "ORCHESTRA_STOP_FILE", "ORCHESTRA_JOB"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of one process that nobody disturbed."""
    out = tmp_path_factory.mktemp("undisturbed")
    options = dataclasses.replace(TINY, data_dir=str(data), output_dir=str(out), sample_tokens=40)
    done = subprocess.run(
        [*GPT, *flags(options)], env=environment(), capture_output=True, text=True, timeout=600, cwd=out
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_it_learns_and_leaves_the_files_that_people_look_for(undisturbed: Path, data: Path) -> None:
    curve = losses(undisturbed)
    assert list(curve) == list(range(1, STEPS + 1))
    assert curve[STEPS] < curve[1] - 0.5
    names = {path.name.partition(".tfevents")[0] for path in undisturbed.iterdir()}
    assert names == {"log.txt", "current_ckpt.pt", "checkpoint_9.pt", "checkpoint_10.pt", "events.out", "checkpoints"}
    log = (undisturbed / "log.txt").read_text()
    assert len(re.findall(r"\[EVAL\] step \d+ val_loss=", log)) == 3
    assert "[SAMPLE] " in log
    assert re.search(r"\[DONE\] steps=50 goodput=0\.\d+ ", log)
    assert (undisturbed / "checkpoints" / "best").resolve().name in ("step-00000050", "step-00000040")
    words = ["--data-dir", str(data), "--prompt", "the smith", "--tokens=20", "--temperature=0"]
    done = subprocess.run(
        [sys.executable, "-m", "orchestra.train.gpt.sampling", "--output_dir", str(undisturbed), *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the smith")
    assert len(done.stdout) == len("the smith") + 21


def test_stopped_on_two_processes_killed_on_four_and_ended_on_one_it_goes_on_exactly(
    undisturbed: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    given = flags(dataclasses.replace(TINY, data_dir=str(data), output_dir=str(out), step_delay=0.1))
    with Ranks(tmp_path / "two", 2, *given, program=GPT) as ranks:
        ranks[1].wait_for_step(12)
        ranks[1].ask_to_stop()
        assert [rank.exit_code() for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
        stopped = ranks[0].result["step"]
        assert ranks[0].result == ranks[1].result
        assert ranks[0].result["checkpoint"] == str(last_complete(out / "checkpoints"))
    with Ranks(tmp_path / "four", 4, *given, program=GPT) as ranks:
        ranks[0].wait_for_step(stopped + 8)
        ranks[2].process.send_signal(signal.SIGKILL)
        ranks[2].exit_code()
        for rank in ranks:
            rank.process.kill()
        assert f"resumed after step {stopped} " in ranks[0].output
        assert "firstStallSeconds" in ranks[0].progress
    saved = last_complete(out / "checkpoints")
    assert saved is not None
    given = flags(dataclasses.replace(TINY, data_dir=str(data), output_dir=str(out)))
    with Ranks(tmp_path / "one", 1, *given, program=GPT) as ranks:
        assert ranks[0].exit_code() == 0, ranks[0].output
        resumed = re.search(r"resumed after step (\d+) ", ranks[0].output)
        assert resumed
        assert int(resumed[1]) >= int(saved.name[5:13]), "the killed ranks' writers may have finished one more"
        assert ranks[0].progress["goodput"] < 1
    expected, found = losses(undisturbed), losses(out)
    assert sorted(found) == list(expected)
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=1e-4), f"step {step}"
    ours, theirs = (re.findall(r"step 50 val_loss=(\S+)", (one / "log.txt").read_text()) for one in (out, undisturbed))
    assert float(ours[-1]) == pytest.approx(float(theirs[-1]), rel=1e-4)


def test_a_starved_expert_on_one_rank_trains_under_ddp_and_fsdp_and_resumes_exactly(tmp_path: Path) -> None:
    corpus.write(tmp_path)
    program = [sys.executable, str(Path(__file__).with_name("starved.py"))]
    with Ranks(tmp_path / "ranks", 2, str(tmp_path), *free_ports(3), program=program) as ranks:
        assert [rank.exit_code(600) for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
        assert "whole 9 (4, 64, 16)" in ranks[0].output
        assert "resumed after step 6 " in ranks[0].output
    ddp, fsdp = losses(tmp_path / "ddp"), losses(tmp_path / "fsdp")
    assert list(ddp) == list(fsdp) == list(range(1, 10))
    for step, loss in ddp.items():
        assert fsdp[step] == pytest.approx(loss, rel=1e-4), "sharded and resumed, or neither: it is the same training"


def free_ports(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in sockets]


def trained(options: Options) -> Any:
    from orchestra.train.gpt.training import Trainer

    trainer = Trainer(options)
    trainer.run()
    return trainer


@pytest.mark.usefixtures("in_process")
def test_the_coefficient_evens_out_how_the_experts_are_used(data: Path, tmp_path: Path) -> None:
    spread = {}
    for coefficient in (0.0, 1.0):
        out = tmp_path / str(coefficient)
        moe: dict[str, Any] = {
            "n_experts": 4,
            "top_k": 1,
            "moe_coef": coefficient,
            "dropout": 0.0,
            "checkpoint_every": 0,
        }
        trained(
            dataclasses.replace(TINY, data_dir=str(data), output_dir=str(out), learning_rate=0.01, max_steps=40, **moe)
        )
        found = re.findall(r"experts=(\S+)\.\.(\S+) ", (out / "log.txt").read_text())
        least, most = (float(value) for value in found[-1])
        spread[coefficient] = most - least
        if coefficient:
            assert least > 0, "all experts are used"
    assert spread[1.0] < spread[0.0]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vocab_size": 20}, r"train.bin: id \d+ at byte \d+ \(token \d+\) is beyond the vocabulary of 20"),
        ({"fp8": True}, r"--fp8 needs a GPU of compute capability 8.9 or newer"),
        ({"batch_size": 9}, r"2 processes cannot share a global batch of 9"),
        ({"data_dir": "nowhere"}, r"the token file nowhere/train.bin cannot be read: No such file"),
        ({"output_dir": "/dev/null/out"}, r"the output folder /dev/null/out cannot be made: Not a directory"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_place(
    data: Path, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    plain = {"data_dir": str(data), "output_dir": str(tmp_path), "async_checkpoints": False}
    with pytest.raises(Refused, match=reason):
        trained(dataclasses.replace(TINY, **{**plain, **change}))


@pytest.mark.usefixtures("in_process")
def test_a_truncated_file_is_refused_by_name_and_byte(data: Path, tmp_path: Path) -> None:
    for name in ("train.bin", "val.bin"):
        (tmp_path / name).write_bytes((data / name).read_bytes()[:-1])
    with pytest.raises(Refused, match=r"train.bin is cut short: 199999 bytes .* begins at byte 199998"):
        trained(dataclasses.replace(TINY, data_dir=str(tmp_path), output_dir=str(tmp_path / "out")))


def test_a_full_disk_ends_it_with_the_reason_and_the_last_checkpoint_is_kept(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = dataclasses.replace(TINY, data_dir=str(data), output_dir=str(out), max_steps=5, lr_decay_steps=50)
    first = subprocess.run([*GPT, *flags(options)], env=environment(), capture_output=True, text=True, timeout=600)
    assert first.returncode == 0, first.stderr
    more = flags(dataclasses.replace(options, max_steps=20))
    second = subprocess.run(
        [*GPT, *more],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)),
    )
    assert second.returncode == 2, second.stdout + second.stderr
    assert "error: checkpoint of step 10 not written to" in second.stderr
    assert "resumed after step 5" in second.stdout
    saved = last_complete(out / "checkpoints")
    assert saved is not None
    assert saved.name == "step-00000005"
    changed = subprocess.run(
        [*GPT, *more, "--n_layer=3"], env=environment(), capture_output=True, text=True, timeout=600
    )
    assert changed.returncode == 2
    assert "was saved with --n-layer 2 (now 3)" in changed.stderr


def rounds(tmp_path: Path, count: int) -> str:
    corpus.write(tmp_path)
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    program = Path(__file__).with_name("gpt_rounds.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path), str(seed), str(count)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=800 if count < 20 else 3600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return done.stdout


def test_killed_or_stopped_at_any_moment_it_resumes_exactly(tmp_path: Path) -> None:
    assert "rounds=5 " in rounds(tmp_path, 5)


@pytest.mark.soak
@pytest.mark.timeout(3700)
def test_killed_or_stopped_a_hundred_times_it_resumes_exactly(tmp_path: Path) -> None:
    assert "rounds=100 " in rounds(tmp_path, 100)
