"""The AWS command line, for jobs that are rendered to plain Kubernetes: they move their bytes with `aws s3 sync`.

From PyPI into a folder of the cache, once; its packages are none of ours.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.programs import cache_folder
from testbed.progress import Progress
from testbed.tiers import Tier, TierUnavailable, register_tier

_PACKAGE = "awscli==1.45.11"


def folder() -> Path:
    """The folder to lend to a pod; the program is `bin/aws` in it."""
    return cache_folder() / _PACKAGE.replace("==", "-")


def pytest_configure(config: pytest.Config) -> None:
    """An optional tier."""
    register_tier(config, Tier("the AWS command line", "aws_cli", (), _prepare, required_in_ci=False))
    config.addinivalue_line("markers", "aws_cli: needs the AWS command line, which PyPI brings")


def _prepare(progress: Progress) -> None:
    made = folder()
    if (made / ".complete").exists():
        return
    progress.update(f"fetching {_PACKAGE} from PyPI (half a minute, once)")
    shutil.rmtree(made, ignore_errors=True)
    for words in ([sys.executable, "-m", "venv", str(made)],
                  [str(made / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", _PACKAGE]):  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            raise TierUnavailable(f"{_PACKAGE} cannot be installed: {last}")
    (made / ".complete").touch()
