"""The examples that need no GPU run as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize("name", ["cpu", "gpt", "lora", "sft"])
def test_an_example_runs_as_it_is(name: str, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "project" / "examples")
    command = [str(Path(sys.executable).with_name("orchestra")), "run", "-f", f"examples/{name}.yaml"]
    env = os.environ | {"ORCHESTRA_HOME": str(tmp_path / "home")}
    run = [*command, "--follow"]
    done = subprocess.run(
        run, cwd=tmp_path / "project", env=env, capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Succeeded" in done.stdout + done.stderr
