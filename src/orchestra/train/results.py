"""The rank's last word to the agent. No exit code leaves torchrun, so the result is a file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from orchestra.train import environment
from orchestra.train.durable import replace_json
from orchestra.train.reporting import reporter


def result(state: Literal["stopped", "done"], step: int, checkpoint: Path | None = None) -> None:
    """Say that this rank stopped as asked, or is done. Call it on every rank, last, then exit 0.

    When all ranks of a worker have, the agent ends the worker without waiting for them. Does nothing without
    ORCHESTRA_RESULT_FILE.
    """
    reporter().flush()
    path = environment.result_file()
    if path is not None:
        replace_json(path, {"state": state, "step": step, "checkpoint": str(checkpoint) if checkpoint else None})
