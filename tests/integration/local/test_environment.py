"""Requirements of a job: installed once, kept by content, seen by every rank, and a clear word where it cannot be."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from local_engine import Local


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder whose requirements name a wheel beside them: no index is needed."""
    made = tmp_path / "project"
    made.mkdir()
    with zipfile.ZipFile(made / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "WORD = 'tiny is here'\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\n")
    (made / "requirements.txt").write_text("./tiny-1.0-py3-none-any.whl\n")
    (made / "train.py").write_text("import msgspec, sys, tiny\nprint(tiny.WORD, sys.prefix, flush=True)\n")
    return made


def test_requirements_are_installed_once_and_seen_by_all_ranks(local: Local, project: Path) -> None:
    for name in ("one", "two"):
        local.submit(name, ["python", "train.py"], launcher="none", numNodes=2, folder=project,
                     environment={"requirements": "requirements.txt"}, setupCommand="echo set-up; command -v python")  # fmt: skip
        job = local.rest(name, timeout=240)
        assert job.status is not None
        assert job.status.phase == "Succeeded", local.log(name)
        assert local.log(name).count("tiny is here") == 2
        assert str(local.home.root / "environments" / "env-") in local.log(name)
    assert local.log("one").count("making environment") == 1, "two nodes of one machine, made once"
    assert local.log("two").count("is here already") == 2
    assert len(list((local.home.root / "environments").glob("env-*/bin/python"))) == 1


@pytest.mark.parametrize(
    ("environment", "words"),
    [({"requirements": "missing.txt"}, "missing.txt: No such file"), ({"manager": "conda"}, "conda is not installed"),
     ({"python": "3.2"}, "there is no Python 3.2 here")],
)  # fmt: skip
def test_what_cannot_be_made_is_said(
    local: Local, project: Path, environment: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    local.submit("bad", ["python", "train.py"], launcher="none", folder=project, environment=environment,
                 restartPolicy="Never")  # fmt: skip
    job = local.rest("bad")
    assert job.status is not None
    assert job.status.failure is not None
    assert job.status.failure.reason == "Setup"
    assert words in (job.status.failure.message or ""), job.status.failure


@pytest.mark.parametrize("name", ["conda", "micromamba"])
def test_a_conda_environment_is_made_where_there_is_one(
    local: Local, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A stand-in that makes a venv: no real conda, and no channel of packages, is within reach of the tests."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    said = tmp_path / "said.txt"
    script = f"""#!/bin/sh
echo "$@" >> {said}
while [ "$1" != -p ]; do shift; done
{sys.executable} -m venv "$2"
"""
    (bin_folder / name).write_text(script)
    (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{Path(sys.executable).parent}:/usr/bin:/bin")
    (project / "train.py").write_text("import sys, tiny\nprint(tiny.WORD, sys.prefix, flush=True)\n")
    local.submit("conda", ["python", "train.py"], launcher="none", folder=project, restartPolicy="Never",
                 environment={"requirements": "requirements.txt", "manager": "conda", "python": "3.11"})  # fmt: skip
    job = local.rest("conda", timeout=240)
    assert job.status is not None
    assert job.status.phase == "Succeeded", local.log("conda")
    (line,) = said.read_text().splitlines()
    assert line.startswith("create -y -q -p ")
    assert line.endswith("python=3.11 pip")
    assert ("-c conda-forge" in line) == (name == "micromamba")
    assert f"tiny is here {local.home.root}/environments/env-" in local.log("conda")
