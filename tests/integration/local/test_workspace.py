"""A job on this machine runs on a snapshot of its folder, and what it writes comes home."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from local_engine import Local
from orchestra.local.submitted_code import snapshot_of

WAITING = """
import os, time
from pathlib import Path
print("version one", flush=True)
gate = Path(os.environ["GATE"])
while not gate.exists():
    time.sleep(0.05)
import helper
print("helper says", helper.WORD, flush=True)
Path("out").mkdir(exist_ok=True)
Path("out/model.txt").write_text("weights")
Path("notes/new.txt").write_text("fresh")
Path("notes/tracked.txt").write_text("changed by the program")
print("data says", Path("data/train.txt").read_text(), flush=True)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder: code, data that git ignores, a key."""
    made = tmp_path / "project"
    (made / "notes").mkdir(parents=True)
    (made / "data").mkdir()
    (made / "train.py").write_text(WAITING)
    (made / "helper.py").write_text("WORD = 'before'\n")
    (made / "notes" / "tracked.txt").write_text("as it was")
    (made / "data" / "train.txt").write_text("42")
    (made / ".gitignore").write_text("data/\n")
    (made / ".env").write_text("TOKEN=hunter2\n")
    return made


def start(local: Local, project: Path, name: str, gate: Path) -> None:
    env = [{"name": "GATE", "value": str(gate)}]
    local.submit(name, [sys.executable, "train.py"], launcher="none", folder=project, env=env, restartPolicy="Never")
    local.wait(name, lambda _: "version one" in local.log(name))


def test_editing_while_a_job_runs_changes_nothing_and_its_files_come_home(
    local: Local, project: Path, tmp_path: Path
) -> None:
    start(local, project, "calm", tmp_path / "gate")
    (project / "helper.py").write_text("WORD = 'after'\n")
    (project / "train.py").unlink()
    (tmp_path / "gate").touch()
    job = local.rest("calm")
    assert job.status is not None
    assert job.status.phase == "Succeeded", local.log("calm")
    log = local.log("calm")
    assert "helper says before" in log
    assert "data says 42" in log, "what does not ship is still there on the user's own machine"
    assert (project / "out" / "model.txt").read_text() == "weights"
    assert (project / "notes" / "new.txt").read_text() == "fresh"
    assert (project / "notes" / "tracked.txt").read_text() == "as it was", "nothing of the user's is overwritten"
    assert (local.engine.output("calm") / "workdir" / "notes" / "tracked.txt").read_text() == "changed by the program"
    assert any("its own file of that name" in event.message for event in local.engine.events("calm"))
    assert not list(project.rglob("__pycache__"))


def test_diff_tells_what_changed_since(local: Local, project: Path, tmp_path: Path) -> None:
    start(local, project, "calm", tmp_path / "gate")
    assert local.cli("diff", "calm", folder=project).returncode == 0
    (project / "helper.py").write_text("WORD = 'after'\n")
    (project / "more.py").write_text("pass\n")
    told = local.cli("diff", "calm", folder=project)
    assert told.returncode == 1
    assert {"A more.py", "M helper.py", "-WORD = 'before'", "+WORD = 'after'"} <= set(told.stdout.splitlines())
    local.engine.delete("calm")
    local.nothing_left()


def test_history_names_snapshot_and_commit(local: Local, project: Path) -> None:
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "helper.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    done = local.cli("run", "--launcher", "none", "--name", "one", "--", sys.executable, "helper.py", folder=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"commit {head[:10]} with changes" in done.stderr
    assert "warning: .env look like secrets and stay home" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    id = snapshot_of(local.engine.get("one")) or ""
    assert {id[:12], f"{head[:10]}*"} <= set(local.cli("history", "--no-headers").stdout.split())


def test_a_dry_run_lists_what_ships_and_why_the_rest_does_not(local: Local, project: Path) -> None:
    told = local.cli("submit", "--dry-run", "--", sys.executable, "helper.py", folder=project)
    assert told.returncode == 0, told.stderr
    assert "+ helper.py  16 bytes" in told.stdout
    assert re.search(r"^- data/  .*.gitignore.*data/", told.stdout, re.M)
    assert "- .env  " in told.stdout
    assert not local.engine.jobs()
    with_it = local.cli("submit", "--dry-run", "--include", ".env", "--", "python", "helper.py", folder=project)
    assert "+ .env  14 bytes" in with_it.stdout


def test_limits_name_the_folders_to_blame(local: Local, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "big").mkdir()
    for number in range(12):
        (project / "big" / f"{number}.bin").write_bytes(os.urandom(1024))
    monkeypatch.setenv("ORCHESTRA_WORKSPACE_WARN_FILES", "5")
    warned = local.cli("submit", "--dry-run", "--", "python", "helper.py", folder=project)
    assert "largest folders: big/" in warned.stderr
    monkeypatch.setenv("ORCHESTRA_WORKSPACE_MAX_BYTES", "8Ki")
    refused = local.cli("submit", "--", "python", "helper.py", folder=project)
    assert refused.returncode == 1
    assert "big/ (" in refused.stderr
    assert not local.engine.jobs()


def test_snapshots_go_with_their_jobs(local: Local, project: Path) -> None:
    def kept() -> set[str]:
        return {path.name for path in (local.home.code / "snapshots").iterdir()}

    (project / "train.py").write_text("print('first')\n")
    local.submit("one", [sys.executable, "train.py"], launcher="none", folder=project)
    local.rest("one")
    first = snapshot_of(local.engine.get("one"))
    (project / "train.py").write_text("print('second')\n")
    local.submit("two", [sys.executable, "train.py"], launcher="none", folder=project)
    local.rest("two")
    second = snapshot_of(local.engine.get("two"))
    assert kept() == {first, second}
    folder = local.home.job("one", local.engine.get("one").metadata.uid or "")
    assert folder.code.is_dir()
    local.engine.delete("one")
    assert kept() == {second}
    assert not folder.code.exists()
    local.submit("two", [sys.executable, "train.py"], launcher="none", folder=project)  # unchanged: the same snapshot
    local.rest("two")
    assert kept() == {second}
    assert "second" in local.log("two")


def test_in_place_runs_in_the_folder_itself(local: Local, project: Path) -> None:
    (project / "where.py").write_text("import os; print('in', os.getcwd())\n")
    words = ["run", "--in-place", "--launcher", "none", "--", sys.executable, "where.py"]
    assert f"in {project}" in local.cli(*words, folder=project).stdout
    words.remove("--in-place")
    assert f"in {project}" not in local.cli(*words, folder=project).stdout
