"""What the tests of the smoke trainer share."""

import sys
from pathlib import Path

import pytest

from integration.train.ranks import by_hand


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of two processes under plain torchrun, without an agent, never disturbed."""
    folder: Path = tmp_path_factory.mktemp("undisturbed")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return by_hand("--output-dir", str(folder), launcher=torchrun)
