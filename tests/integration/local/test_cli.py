"""The embedded engine from the command line, as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from local_engine import COOPERATIVE, Local

SCRIPT = (
    "import os\nprint('rank', os.environ.get('RANK'), 'of', os.environ.get('WORLD_SIZE'), os.environ.get('MORE', ''))\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with a script."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "hello.py").write_text(SCRIPT)
    return made


@pytest.mark.torch
def test_a_command_needs_no_file(local: Local, folder: Path) -> None:
    result = local.cli("run", "python hello.py", "--procs", "2", "--env", "MORE=x y", folder=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "hello submitted to queue local" in result.stdout
    assert {"[r0] rank 0 of 2 x y", "[r1] rank 1 of 2 x y"} <= set(result.stdout.splitlines())
    assert "next: orchestra status hello" in result.stdout
    again = local.cli("run", "-d", "--", "python", "hello.py", folder=folder)
    assert "hello-2 submitted" in again.stdout
    assert local.cli("wait", "--timeout", "60s", folder=folder).returncode == 0  # the newest of this folder
    assert local.cli("get", "hello-2", "-o", "name").stdout == "torchrunjob/hello-2\n"


@pytest.mark.torch
def test_init_writes_a_file_that_runs_as_it_is(local: Local, folder: Path) -> None:
    assert local.cli("init", "python hello.py", "-o", "job.yaml", folder=folder).returncode == 0
    assert local.cli("init", "python hello.py", "-o", "job.yaml", folder=folder).returncode == 1, "never overwritten"
    assert local.cli("validate", "job.yaml", folder=folder).returncode == 0
    result = local.cli("run", "-f", "job.yaml", folder=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[r0] rank 0 of 1" in result.stdout


def plain(name: str, *words: object) -> list[str]:
    return [
        "submit",
        "-d",
        "--name",
        name,
        "--launcher",
        "none",
        "--",
        sys.executable,
        str(COOPERATIVE),
        *map(str, words),
    ]


def test_a_job_through_all_its_verbs(local: Local) -> None:
    assert local.cli(*plain("all", 400, 0.05)).returncode == 0
    assert local.cli("wait", "all", "--for=Running", "--timeout", "30s").returncode == 0
    local.step("all", 2)
    assert local.cli("status", "all").returncode == 101
    assert local.cli("wait", "all", "--timeout", "0.2s").returncode == 101
    suspended = local.cli("suspend", "all")
    assert suspended.returncode == 0
    assert "saved at step" in suspended.stdout
    assert local.cli("status", "all").returncode == 103
    assert "mend: orchestra resume all" in local.cli("why", "all").stdout
    resumed = local.cli("resume", "all", "--set", "lifecycle.maxRestarts=1")
    assert resumed.returncode == 0, resumed.stderr
    assert local.cli("wait", "all", "--for=Running", "--timeout", "30s").returncode == 0
    assert local.cli("cancel", "all").returncode == 0
    assert local.cli("wait", "all").returncode == 103
    shown = json.loads(local.cli("get", "all", "-o", "json").stdout)
    assert (shown["apiVersion"], shown["kind"], shown["status"]["phase"]) == (
        "torchrun.ai/v1alpha1",
        "TorchrunJob",
        "Failed",
    )
    listed = yaml.safe_load(local.cli("list", "-o", "yaml").stdout)
    assert [item["metadata"]["name"] for item in listed["items"]] == ["all"]
    assert local.cli("list", "--no-headers").stdout.split()[0] == "all"
    assert "LOSS" in local.cli("list", "-o", "wide").stdout
    assert "Resumed" in local.cli("events", "all").stdout
    assert "begin at 0" in local.cli("logs", "all", "--rank", "0").stdout
    assert local.cli("logs", "all", "--rank", "5").stdout == ""
    assert "begin at 0" in local.cli("logs", "all", "--role", "launcher").stdout
    assert local.cli("logs", "all", "--role", "worker").stdout == "", "it has one node"
    assert "cooperative.py" in local.cli("history").stdout
    assert "local" in local.cli("queue").stdout
    assert local.cli("delete", "all", "--purge").returncode == 0
    assert local.cli("status", "all").returncode == 102
    assert "all" in local.cli("history").stdout


def test_interrupting_the_view_leaves_the_job_running(local: Local) -> None:
    program = str(Path(sys.executable).with_name("orchestra"))
    words = [program, "run", *plain("watched", 400, 0.05)[2:]]
    env = os.environ | {"ORCHESTRA_HOME": str(local.home.root), "PYTHONUNBUFFERED": "1"}
    # A run in the background of a script ignores ^C, and its children inherit that; a terminal's do not.
    hears = [
        sys.executable,
        "-c",
        "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
    ]
    with subprocess.Popen([*hears, *words], stdout=subprocess.PIPE, text=True, env=env, cwd=local.home.root) as view:
        end = time.monotonic() + 30
        while not local.engine.jobs() and time.monotonic() < end:
            time.sleep(0.05)
        local.step("watched", 1)
        view.send_signal(signal.SIGINT)
        said, _ = view.communicate(timeout=20)
    assert view.returncode == 101
    assert "goes on without you" in said
    status = local.engine.get("watched").status
    assert status is not None
    assert status.progress is not None
    local.step("watched", (status.progress.step or 0) + 10)
    local.engine.delete("watched")
    local.nothing_left()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "cd x && python y.py"], "needs a shell"),
        (["run", "python x.py", "--queue", "nowhere"], "there is no queue 'nowhere'"),
        (["run", "python x.py", "--env", "novalue"], "NAME=VALUE"),
        (["run", "-f", "absent.yaml"], "cannot be read"),
        (["run", "python x.py", "--name", "Bad Name"], "metadata.name"),
        (["run", "python x.py", "--gpus", "64"], "numGPUs"),
    ],
)
def test_mistakes_are_told_and_nothing_is_created(local: Local, words: list[str], said: str) -> None:
    result = local.cli(*words)
    assert result.returncode == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not local.engine.jobs()


def test_usage_is_exit_code_2(local: Local) -> None:
    assert local.cli("run").returncode == 2
    assert local.cli("logs", "--rank", "x").returncode == 2
    assert local.cli("logs", "--since", "soon").returncode == 2
    assert local.cli("status").returncode == 102
