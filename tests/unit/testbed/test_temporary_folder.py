"""A state folder goes with its owner, in one way or another."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

from testbed.temporary_folder import TemporaryFolder, sweep

PREFIX = f"orchestra-test-{secrets.token_hex(4)}-"


def test_a_folder_of_a_living_owner_is_left_alone() -> None:
    folder = TemporaryFolder(PREFIX)
    assert sweep(PREFIX) == []
    TemporaryFolder(PREFIX).remove()
    assert folder.path.is_dir()
    folder.remove()
    assert not folder.path.exists()


def test_a_folder_of_a_killed_owner_is_swept_by_the_next() -> None:
    script = (
        "import os, sys; from testbed.temporary_folder import *;"
        "print(TemporaryFolder(sys.argv[1]).path, flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", script, PREFIX]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60).stdout
    left = Path(out.strip())
    assert left.is_dir()
    assert sweep(PREFIX) == [left]
    assert not left.exists()
