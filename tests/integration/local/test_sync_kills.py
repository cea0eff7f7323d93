"""Random SIGKILLs of everything that has a hand in an upload: program, agent, sender, server.

At any moment somebody on another machine may want to go on: what they get is whole, and not older than what was
reported as being in the store.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_engine import Local
from orchestra.sync.outputs import Outputs
from orchestra.sync.pace import Patience
from orchestra.sync.remote import Remote
from orchestra.sync.transfer import up
from testbed.object_store import ObjectStore
from testbed.waiting import wait_until

# Saves as fast as it can, as the library does: a draft, then a rename. Each checkpoint can be told to be whole.
TRAIN = """
import json, os, random, time
from pathlib import Path
out = Path("out/checkpoints")
report = Path(os.environ["ORCHESTRA_RANK_DIR"]) / "progress.json"
done = sorted(out.glob("step-*"))
step = int(done[-1].name.split("-")[1]) if done else 0
print("begin at", step, flush=True)
while True:
    step += 1
    draft = out / f"tmp-{step}"
    draft.mkdir(parents=True, exist_ok=True)
    for part in range(3):
        (draft / f"{part}.pt").write_bytes(random.Random(f"{step} {part}").randbytes(random.randrange(1, 200_000)))
    sizes = [(draft / f"{part}.pt").stat().st_size for part in range(3)]
    (draft / "manifest.json").write_text(json.dumps({"step": step, "sizes": sizes}))
    target = out / f"step-{step:08}"
    if not target.exists():
        draft.rename(target)
    news = {"time": time.time(), "step": step, "checkpointStep": step}  # which refills the budget of restarts
    report.with_suffix(".tmp").write_text(json.dumps(news))
    report.with_suffix(".tmp").replace(report)
    for old in sorted(out.glob("step-*"))[:-3]:
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with ObjectStore() as made:
        yield made


@pytest.fixture
def prefix(server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A place with code."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    place = server.url(f"kills/{uuid.uuid4()}")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    up(tmp_path / "code", Remote(f"{place}/code"))
    return place


def victims(local: Local) -> dict[str, int]:
    """Who lives, by what they do."""
    found = {}
    for pid, line in local.processes().items():
        if "orchestra.sync.worker send" in line:
            found["sender"] = pid
        elif "agent-" in line and " run " in line:
            found["agent"] = pid
        elif "train.py" in line and "agent" not in line:
            found["program"] = pid
    return found


def is_whole(folder: Path, step: int) -> bool:
    """Whether a checkpoint that came from the store is one that the program wrote."""
    place = folder / "checkpoints" / f"step-{step:08}"
    manifest = json.loads((place / "manifest.json").read_text())
    for part, size in enumerate(manifest["sizes"]):
        content = (place / f"{part}.pt").read_bytes()
        if content != random.Random(f"{step} {part}").randbytes(size):
            return False
    return bool(manifest["step"] == step)


@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.timeout(7200)
def test_whoever_is_killed_nothing_reported_is_lost(
    local: Local, prefix: str, server: ObjectStore, tmp_path: Path, rounds: int
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    sync = {"code": f"{prefix}/code", "output": f"{prefix}/output", "interval": 1}
    local.submit("kills", [sys.executable, "train.py"], launcher="none", sync=sync, maxRestarts=10000)
    folder = local.home.job("kills", local.engine.get("kills").metadata.uid or "").root
    outputs = Outputs(Remote(f"{prefix}/output/checkpoints", patience=Patience(seconds=120)))

    def reported() -> int:
        try:
            name = json.loads((folder / "sync" / "sent.json").read_text())["checkpoint"]
        except (OSError, ValueError):
            return 0
        return int(name.rsplit("-", 1)[1]) if name else 0

    killed: dict[str, int] = {}
    last = 0
    while (number := sum(killed.values())) < rounds:
        wait_until("one more checkpoint is in the store", lambda least=last: reported() > least, timeout=600)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 1.5))
        who = chance.choice(["sender", "agent", "program", "server"])
        if who == "server":
            server.kill9()
            time.sleep(chance.uniform(0, 1))
            server.restart()
        elif (pid := victims(local).get(who)) is not None:
            os.kill(pid, signal.SIGKILL)
        else:
            time.sleep(0.2)
            continue  # it is just being started
        killed[who] = killed.get(who, 0) + 1
        promised = reported()
        there = tmp_path / f"there-{number}"
        resumed = outputs.resume(there)
        assert resumed is not None, (seed, number, who)
        assert not resumed.passed_over, (seed, number, who, resumed.passed_over)
        assert is_whole(there, resumed.name.step), (seed, number, who)
        assert resumed.name.step >= promised, (seed, number, who, "what was reported is not there")
        last = max(last, resumed.name.step)
    print("killed", killed)
    local.engine.cancel("kills")
    local.rest("kills", timeout=300)
    resumed = outputs.resume(tmp_path / "after")
    assert resumed is not None
    assert resumed.name.step >= last
