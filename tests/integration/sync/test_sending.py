"""The program that moves a worker's bytes, killed at any moment: what it reported is there, and nothing half is."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from orchestra.sync.hashing import hash_of
from orchestra.sync.moving import Orders
from orchestra.sync.remote import Remote

WORKER = [sys.executable, "-m", "orchestra.sync.worker"]


def orders(folder: Path, url: str, named: str = "job", **more: object) -> Path:
    """Orders for a folder `out` beside a state of its own."""
    made = Orders(job=named, uid=f"uid-{named}", output=f"{url}/output", output_folder=str(folder / "out"),
                  state=str(folder / "state"), interval=0.05, quiet=0.0, **more)  # type: ignore[arg-type]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "out").mkdir(exist_ok=True)
    file = folder / "orders.json"
    file.write_bytes(msgspec.json.encode(made))
    return file


def publish(out: Path, step: int) -> None:
    """A checkpoint as the library leaves it: a draft, then a rename."""
    draft = out / "checkpoints" / f"tmp-{step}"
    draft.mkdir(parents=True)
    content = random.randbytes(random.randrange(1, 400_000))
    (draft / "state.pt").write_bytes(content)
    (draft / "manifest.json").write_text(json.dumps({"step": step, "hash": hash_of(content)}))
    draft.rename(out / "checkpoints" / f"step-{step:08}")


def reported(folder: Path) -> int:
    """The newest checkpoint that was told to be in the store."""
    try:
        name = json.loads((folder / "state" / "sent.json").read_text())["checkpoint"]
    except (OSError, ValueError):
        return 0
    return int(name.rsplit("-", 1)[1]) if name else 0


@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
def test_a_killed_upload_loses_nothing_that_was_reported(url: str, tmp_path: Path, rounds: int) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    here, done = tmp_path / "here", threading.Event()
    sending = orders(here, url)

    def train() -> None:
        step = 0
        while not done.is_set():
            step += 1
            publish(here / "out", step)
            time.sleep(0.03)

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for number in range(rounds):
            process = subprocess.Popen([*WORKER, "send", str(sending)], stdout=subprocess.DEVNULL)
            before = reported(here)
            end = time.monotonic() + 300
            while reported(here) <= before and time.monotonic() < end:  # at least one more got through
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
            process.wait()
            promised = reported(here)
            assert promised > before
            there = tmp_path / f"there-{number}"
            told = subprocess.run(
                [*WORKER, "fetch", str(orders(there, url))], capture_output=True, text=True, check=False
            )
            assert told.returncode == 0, told
            steps = sorted((there / "out" / "checkpoints").glob("step-*"))
            assert steps, told.stdout
            manifest = json.loads((steps[-1] / "manifest.json").read_text())
            assert hash_of((steps[-1] / "state.pt").read_bytes()) == manifest["hash"], "never half a checkpoint"
            assert manifest["step"] >= promised, "nothing that was reported is missing"
            resumed = (there / "state" / "resumed").read_text()
            (here / "state" / "resumed").write_text(resumed)  # the next attempt goes on from it
    finally:
        done.set()
        trainer.join()


def test_the_end_sends_everything_that_is_complete(url: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    logs = here / "logs"
    file = orders(here, url, logs=str(logs))
    logs.mkdir()
    process = subprocess.Popen([*WORKER, "send", str(file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "outputs go to" in process.stdout.readline()
    try:
        (here / "out" / "half.pt.part").write_text("never")
        (here / "out" / "result.txt").write_text("final")
        (logs / "attempt-1.log").write_text("1.0 r0 last words\n")
    finally:
        process.terminate()
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    assert "all outputs are in" in out
    remote = Remote(f"{url}/output")
    assert remote.get("out/result.txt") == b"final"
    assert remote.get("log.txt") == b"1.0 r0 last words\n"
    assert "out/half.pt.part" not in {item.key for item in remote.listing()}
    assert json.loads((here / "state" / "sent.json").read_text())["state"] == "synced"


def hub_environment(url: str, tmp_path: Path) -> dict[str, str]:
    return os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}


@pytest.mark.parametrize(
    ("url", "kind", "name"),
    [("hf://owner/model@main", "models", "owner/model"), ("hf://datasets/owner/name", "datasets", "owner/name")],
)
def test_a_hub_is_asked_once_a_node_and_then_no_more(tmp_path: Path, url: str, kind: str, name: str) -> None:
    pytest.importorskip("huggingface_hub")
    from fake_hub import FakeHub

    files = {"config.json": b'{"a": 1}', "data/train.bin": os.urandom(200_000)}
    with FakeHub(files, kind=kind, name=name) as hub:
        made = Orders(data=url, data_folder=str(tmp_path / "data"), state=str(tmp_path / "state"))
        file = tmp_path / "orders.json"
        file.write_bytes(msgspec.json.encode(made))
        env = hub_environment(hub.url, tmp_path)
        line = [*WORKER, "fetch", str(file)]
        both = [subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        said = [one.communicate(timeout=300)[0] for one in both]
        assert [one.returncode for one in both] == [0, 0], said
        assert sum("is here already" in text for text in said) == 1, said
        assert (tmp_path / "data" / "data" / "train.bin").read_bytes() == files["data/train.bin"]
        assert hub.sent["data/train.bin"] == 200_000, "two workers of a node, fetched once"
        asked = hub.requests
    again = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again
    assert "is here already" in again.stdout
    assert hub.requests == asked, "offline afterwards"


def test_a_download_from_a_hub_that_was_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    from fake_hub import FakeHub

    size, piece = 30 << 20, 12 << 20
    with FakeHub({"train.bin": os.urandom(size)}, kind="datasets", name="owner/name") as hub:
        made = Orders(
            data="hf://datasets/owner/name", data_folder=str(tmp_path / "data"), state=str(tmp_path / "state")
        )
        file = tmp_path / "orders.json"
        file.write_bytes(msgspec.json.encode(made))
        hub.cut_after = piece
        line = [*WORKER, "fetch", str(file)]
        done = None
        for _ in range(6):  # the hub's library tries again by itself, some versions of it only when called again
            done = subprocess.run(
                line, env=hub_environment(hub.url, tmp_path), capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                break
            assert not (tmp_path / "data" / "train.bin").exists(), "nothing half under its own name"
        assert done is not None
        assert done.returncode == 0, done
        assert (tmp_path / "data" / "train.bin").read_bytes() == hub.files["train.bin"]
        assert hub.sent["train.bin"] < size + piece, "what was here was not fetched again"


def test_a_second_job_on_the_same_output_is_refused_by_name_while_the_first_lives(any_url: str, tmp_path: Path) -> None:
    def job(name: str, heartbeat: float) -> Path:
        return orders(tmp_path / name, any_url, heartbeat=heartbeat, named=name)

    def fetch(file: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*WORKER, "fetch", str(file)], capture_output=True, text=True, check=False, timeout=120)

    one, two = job("one", 0.2), job("two", 20)  # the second looks for a whole minute, should this machine be slow
    assert fetch(one).returncode == 0
    sender = subprocess.Popen([*WORKER, "send", str(one)], stdout=subprocess.PIPE, text=True)
    assert sender.stdout is not None
    assert "outputs go to" in sender.stdout.readline()
    refused = fetch(two)
    assert refused.returncode == 3, refused
    assert "is the output of one (uid-one), which is running" in refused.stderr
    assert "another sync.output" in refused.stderr
    sender.terminate()
    sender.communicate(timeout=60)
    after = fetch(two)
    assert after.returncode == 0, after
    assert "may still write" not in after.stdout, "the first one said that it has ended"
    again = fetch(one)  # the second was killed before it could send: nobody shows it any more
    assert again.returncode == 0, again
    assert "ended without a word" in again.stdout
