"""New code for a running job: all workers change at one step, or none does."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from local_engine import COOPERATIVE, Local
from orchestra.api.engine import EngineError
from orchestra.local.submitted_code import snapshot_of


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the cooperative script, which says which version it is."""
    made = tmp_path / "project"
    made.mkdir()
    text = COOPERATIVE.read_text()
    (made / "train.py").write_text(
        text.replace("begin = json", "import version\nprint('version', version.N, flush=True)\nbegin = json")
    )
    (made / "version.py").write_text("N = 1\n")
    return made


def begun(local: Local, name: str, version: int) -> list[int]:
    """The steps at which a version of the code began, one a node."""
    lines = [line.partition("] ")[2] for line in local.log(name).splitlines() if re.match(r"\[r\d+\]", line)]
    found, last = [], 0
    for line in lines:
        if line.startswith("version "):
            last = int(line.split()[1])
        if line.startswith("begin at ") and last == version:
            found.append(int(line.split()[-1]))
    return found


def begins(local: Local, name: str, version: int) -> list[int]:
    """The same, once there is any."""
    local.wait(name, lambda _: begun(local, name, version))
    return begun(local, name, version)


def start(local: Local, project: Path, name: str, steps: int = 2000, **spec: Any) -> None:
    local.submit(name, [sys.executable, "train.py", str(steps), "0.05"], launcher="none", folder=project, **spec)
    local.step(name, 2)


def test_an_edit_takes_effect_in_place_from_the_step_it_stopped_at(local: Local, project: Path) -> None:
    start(local, project, "hot", env=[{"name": "ORCHESTRA_PRELOAD", "value": "json"}])  # torch is another test's
    agents = {pid for pid, words in local.processes().items() if " run " in words and "agent" in words}
    assert local.engine.sync("hot") is None, "nothing has changed"
    for version in (2, 3):
        (project / "version.py").write_text(f"N = {version}\n")
        answer = local.engine.sync("hot")
        assert answer is not None
        assert (answer.state, answer.saved, answer.cold) == ("reloaded", True, {}), answer
        assert list(answer.seconds) == ["stage", "acknowledge", "stop and save", "flip", "start"]
        assert answer.step is not None
        assert begins(local, "hot", version) == [answer.step], "not one step is lost, none is done twice"
        local.step("hot", answer.step + 2)
    assert agents <= set(local.processes()), "the same agents"
    job = local.engine.get("hot")
    assert job.status is not None
    assert (job.status.attempt, job.status.restarts or 0) == (1, 0)
    assert any(event.reason == "Reloaded" for event in local.engine.events("hot"))
    local.engine.cancel("hot")
    local.rest("hot")
    with pytest.raises(EngineError, match="already; it cannot be given new code"):
        local.engine.sync("hot")
    local.nothing_left()


def test_a_late_worker_keeps_everybody_on_the_old_code_and_is_named(
    local: Local, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(local, project, "late", numNodes=2, env=[{"name": "ORCHESTRA_PRELOAD", "value": ""}])
    before = snapshot_of(local.engine.get("late"))
    node = local.home.job("late", local.engine.get("late").metadata.uid or "").node(1)
    agent = next(pid for pid, words in local.processes().items() if f"run {node}/launch.json" in words)
    (project / "version.py").write_text("N = 2\n")
    monkeypatch.setenv("ORCHESTRA_RELOAD_SECONDS", "2")
    os.kill(agent, signal.SIGSTOP)
    try:
        answer = local.engine.sync("late")
    finally:
        os.kill(agent, signal.SIGCONT)
    assert answer is not None
    assert (answer.state, answer.late) == ("refused", ["1"])
    assert "node 1 did not answer" in answer.message
    assert snapshot_of(local.engine.get("late")) == before
    progress = local.engine.get("late").status.progress  # type: ignore[union-attr]
    local.step("late", (progress.step or 0) + 3 if progress else 3)  # it still runs
    assert not begun(local, "late", 2)
    monkeypatch.delenv("ORCHESTRA_RELOAD_SECONDS")
    again = local.engine.sync("late")  # and now all of them change
    assert again is not None
    assert again.state == "reloaded", again
    local.wait("late", lambda _: len(begun(local, "late", 2)) == 2)
    local.engine.delete("late")
    local.nothing_left()


def test_changed_requirements_restart_the_workers_as_a_whole(local: Local, project: Path) -> None:
    (project / "requirements.txt").write_text("# none\n")
    start(local, project, "full", environment={"requirements": "requirements.txt"})
    (project / "requirements.txt").write_text("# none, still\n")
    told = local.cli("sync", "full", folder=project)
    assert told.returncode == 0, told.stderr
    assert "all workers are started anew" in told.stdout
    local.wait("full", lambda job: job.status and job.status.attempt == 2 and job.status.phase == "Running")
    job = local.engine.get("full")
    assert job.status is not None
    assert not job.status.restarts, "asked for: it costs no restart"
    local.engine.delete("full")


def test_a_script_that_reports_nothing_is_told_so_before(local: Local, project: Path) -> None:
    (project / "plain.py").write_text("import time\nprint('one', flush=True)\ntime.sleep(600)\n")
    local.submit("plain", [sys.executable, "plain.py"], launcher="none", folder=project,
                 env=[{"name": "ORCHESTRA_PRELOAD", "value": ""}])  # fmt: skip
    local.wait("plain", lambda job: "one" in local.log("plain") and job.status and job.status.phase == "Running")
    (project / "plain.py").write_text("import time\nprint('two', flush=True)\ntime.sleep(600)\n")
    told = local.cli("sync", "plain", folder=project)
    assert told.returncode == 0, told.stderr
    assert "reports no steps: it restarts from its own last checkpoint" in told.stderr
    assert "nothing was saved" in told.stdout
    local.wait("plain", lambda _: "two" in local.log("plain"))
    local.engine.delete("plain")
    local.nothing_left()


@pytest.mark.torch
def test_torchrun_ranks_take_new_code_at_one_agreed_step(local: Local, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(Path(__file__).parent / "reloading.py", project / "train.py")
    (project / "version.py").write_text("N = 1\n")
    local.submit("warm", ["python", "train.py"], folder=project, numNodes=2, procsPerNode=1)
    local.step("warm", 2, timeout=240)
    local.engine.preload("warm")
    (project / "version.py").write_text("N = 2\n")
    answer = local.engine.sync("warm")
    assert answer is not None
    assert (answer.state, answer.cold, answer.saved) == ("reloaded", {}, True), answer
    local.wait("warm", lambda _: local.log("warm").count("version 2 goes on") == 2, timeout=240)
    assert local.log("warm").count(f"version 2 goes on from {answer.step}") == 2, "both ranks, from one step"
    begin = time.monotonic()
    local.step("warm", (answer.step or 0) + 2, timeout=240)
    assert time.monotonic() - begin < 240
    local.engine.delete("warm")
    local.nothing_left()


def test_watching_takes_every_edit_until_the_interrupt(local: Local, project: Path) -> None:
    start(local, project, "watched", env=[{"name": "ORCHESTRA_PRELOAD", "value": "json"}])
    program = Path(sys.executable).with_name("orchestra")
    heard = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    watching = subprocess.Popen(
        [sys.executable, "-c", heard, str(program), "sync", "watched", "-w", "--local"],
        cwd=project, env=os.environ | {"ORCHESTRA_HOME": str(local.home.root)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    told = ""
    try:
        assert "watching" in watching.stdout.readline()
        for version in (2, 3):
            (project / "version.py").write_text(f"N = {version}\n")
            (project / "notes.swp").write_text("an editor's own file ships nothing")
            assert len(begins(local, "watched", version)) == 1
            while (line := watching.stdout.readline()) and not line.startswith("next:"):  # the report comes after
                told += line
    finally:
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=60)
    assert told.count("new code in all workers at step") == 2, told
    local.engine.delete("watched")
    local.nothing_left()
