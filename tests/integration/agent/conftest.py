"""A worker that leaves nothing behind, whatever the test does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.agent.worker import Worker


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    one = Worker(tmp_path)
    yield one
    one.end()
