"""An embedded engine of the test's own, and nothing of it left behind."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_engine import Local


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    """An engine in a folder of its own; whatever a failed test leaves running is ended."""
    home = tmp_path / "home"
    home.mkdir()
    made = Local(home)
    yield made
    for pid in made.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
