"""Code, data and outputs of a job in a real S3 server: in before the start, out while it runs and at its end."""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_contract import reason_of
from local_engine import Local
from orchestra.sync.outputs import Outputs
from orchestra.sync.remote import Remote
from orchestra.sync.transfer import up
from testbed.object_store import ObjectStore

# Like the seed's: reads data/, writes and resumes from out/, and knows nothing of us. It keeps two kinds of checkpoint:
# one foreign file, and folders as the library publishes them.
TRAIN = """
import json, os, sys, time
from pathlib import Path
steps, pause = int(sys.argv[1]), float(sys.argv[2])
out = Path("out")
print("data", Path("data/train.bin").read_text(), "from", os.environ["ORCHESTRA_DATA_DIR"], flush=True)
current = out / "current_ckpt.pt"
begin = json.loads(current.read_text())["step"] if current.exists() else 0
ours = sorted(path.name for path in (out / "checkpoints").glob("step-*"))
print("begin at", begin, "ours", ours[-1] if ours else None, flush=True)
(out / "half.pt.tmp").write_text("never finished")
for step in range(begin + 1, steps + 1):
    time.sleep(pause)
    draft = out / "tmp-current"
    draft.write_text(json.dumps({"step": step}))
    draft.replace(current)
    folder = out / "checkpoints" / f"tmp-{step}"
    folder.mkdir(parents=True)
    (folder / "state.pt").write_text("weights %d" % step)
    (folder / "manifest.json").write_text("{}")
    folder.rename(out / "checkpoints" / f"step-{step:08}")
    print("step", step, flush=True)
(out / "final.txt").write_text("done")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with ObjectStore() as made:
        yield made


@pytest.fixture
def s3(server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ObjectStore:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ORCHESTRA_SYNC_QUIET_SECONDS", "0.2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return server


@pytest.fixture
def prefix(s3: ObjectStore, tmp_path: Path) -> str:
    """A place with code and data."""
    place = s3.url(f"jobs/{uuid.uuid4()}")
    for name, file, text in (("code", "train.py", TRAIN), ("data", "train.bin", "42")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
        up(tmp_path / name, Remote(f"{place}/{name}"))
    return place


def submit(local: Local, prefix: str, name: str, *words: object, **spec: object) -> None:
    sync = {"code": f"{prefix}/code", "data": f"{prefix}/data", "output": f"{prefix}/output", "interval": 1}
    command = [sys.executable, "train.py", *map(str, words)]
    local.submit(name, command, launcher="none", sync=sync, restartPolicy="Never", **spec)  # type: ignore[arg-type]


def test_a_new_machine_goes_on_from_the_store(local: Local, prefix: str, tmp_path: Path, s3: ObjectStore) -> None:
    submit(local, prefix, "seed", 1000, 0.1)
    output = Outputs(Remote(f"{prefix}/output/checkpoints"))
    local.wait("seed", lambda _: "is in the store as" in local.log("seed"))  # a periodic round, while it runs
    local.engine.cancel("seed")
    local.rest("seed")
    assert "all outputs are in" in local.log("seed"), "and once more at its end, though it was stopped"
    keys = {item.key for item in Remote(f"{prefix}/output").listing()}
    assert {"out/current_ckpt.pt", "out/_orchestra.json", "log.txt"} <= keys
    assert not any("tmp" in key for key in keys), "only complete files"
    assert b"step 1" in Remote(f"{prefix}/output").get("log.txt")
    newest = output.names()[0]
    saved = newest.step

    other = Local(tmp_path / "other-machine")
    other.home.root.mkdir()
    submit(other, prefix, "again", saved + 2, 0.01)
    job = other.rest("again")
    assert job.status is not None
    assert job.status.phase == "Succeeded", other.log("again")
    log = other.log("again")
    begun = re.search(r"begin at (\d+) ours step-(\d+)", log)
    assert begun is not None, log
    assert int(begun[2]) == saved
    assert int(begun[1]) in (saved, saved + 1), "it may have been stopped between its two kinds of checkpoint"
    assert output.names()[0].step == saved + 2
    assert (output.newest_fence() or output).holder.resumed_from == str(newest)  # type: ignore[union-attr]
    assert Remote(f"{prefix}/output").get("out/final.txt") == b"done"
    for engine in (local, other):
        for path in engine.home.root.rglob("*"):
            if path.is_file() and path.suffix in (".json", ".log", ".txt"):
                assert s3.secret_key not in path.read_text(errors="replace"), path


def test_a_plain_layout_is_for_people_to_browse(local: Local, prefix: str) -> None:
    sync = {"code": f"{prefix}/code", "data": f"{prefix}/data", "output": f"{prefix}/plain?layout=plain"}
    local.submit("plain", [sys.executable, "train.py", "2", "0.01"], launcher="none", sync=sync)
    assert local.rest("plain").status.phase == "Succeeded", local.log("plain")  # type: ignore[union-attr]
    keys = {item.key for item in Remote(f"{prefix}/plain").listing()}
    assert {"out/checkpoints/step-00000002/state.pt", "out/current_ckpt.pt", "log.txt"} <= keys
    assert not any(key.startswith("checkpoints/") for key in keys)


@pytest.mark.parametrize("wrong", ["credentials", "bucket", "data"])
def test_what_cannot_be_fetched_is_said_before_anything_starts(
    local: Local, prefix: str, wrong: str, monkeypatch: pytest.MonkeyPatch, s3: ObjectStore
) -> None:
    sync = {"code": f"{prefix}/code", "data": f"{prefix}/data"}
    if wrong == "credentials":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-0123456789")
    elif wrong == "bucket":
        sync["data"] = "s3://no-such-bucket/data"
    else:
        sync["data"] = f"{prefix}/nothing-here"
    local.submit("bad", [sys.executable, "train.py", "1", "0"], launcher="none", sync=sync)
    job = local.rest("bad")
    assert job.status is not None
    assert (job.status.phase, reason_of(job)) == ("Failed", "SyncRefused"), local.log("bad")
    assert job.status.failure is not None
    message = job.status.failure.message or ""
    assert "s3://" in message
    assert "wrong-secret" not in message + local.log("bad")
    assert s3.secret_key not in message + local.log("bad")
    assert "begin at" not in local.log("bad")


def test_code_comes_from_a_git_repository(local: Local, tmp_path: Path) -> None:
    import subprocess

    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "train.py").write_text("print('from git')\n")
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    workspace = {"source": "git", "url": str(repository), "ref": "main"}
    local.submit("cloned", [sys.executable, "train.py"], launcher="none", workspace=workspace)
    assert local.rest("cloned").status.phase == "Succeeded", local.log("cloned")  # type: ignore[union-attr]
    assert "from git" in local.log("cloned")
    workspace["ref"] = "no-such-branch"
    local.submit("lost", [sys.executable, "train.py"], launcher="none", workspace=workspace)
    assert reason_of(local.rest("lost")) == "SyncRefused"
