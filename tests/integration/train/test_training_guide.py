"""The snippets of docs/training.md, run one after the other as they stand there."""

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

GUIDE = Path(__file__).parents[3] / "docs" / "training.md"


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "ORCHESTRA_OUTPUT_DIR", "ORCHESTRA_STOP_FILE", "ORCHESTRA_JOB"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MLFLOW_TRACKING_URI", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "snippet"}
    snippets = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(snippets) >= 8
    for number, snippet in enumerate(snippets, start=1):
        exec(compile(snippet, f"training.md, snippet {number}", "exec"), names)  # noqa: S102 - our own guide
    assert (tmp_path / "out" / "checkpoints" / "latest").resolve().name == "step-00000006"
    assert (tmp_path / "out" / "current_ckpt.pt").exists()


def test_the_options_of_the_guide_exist() -> None:
    from orchestra.train.gpt.options import Options

    section = GUIDE.read_text().partition("## The GPT trainer")[2]
    flags = set(re.findall(r"--([a-z0-9-]+)", section)) - {"help", "prompt"}
    known = {name.replace("_", "-") for name in Options.__dataclass_fields__}
    assert flags <= known, flags - known
