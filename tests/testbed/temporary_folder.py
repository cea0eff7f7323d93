"""State folders that go with their owner, and are swept by the next run when the owner was killed."""

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from testbed.processes import clear_leftovers

_LOCK = "owner.lock"


class TemporaryFolder:
    """A folder under the system's temporary one. A lock, which dies with its holder, tells that its owner
    lives.
    """

    def __init__(self, prefix: str) -> None:
        sweep(prefix)
        self.path = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(6)}"
        self.path.mkdir(mode=0o700)
        # Locked before it has its name: a sweeping run never sees it without its lock.
        unnamed = self.path / "new.lock"
        self._lock = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Delete it with all it holds."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep(prefix: str, under: Path | None = None) -> list[Path]:
    """Remove folders whose owner is gone, and kill what their records still truthfully name."""
    swept = []
    for lock in (under or Path(tempfile.gettempdir())).glob(f"{prefix}*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open() as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                continue  # somebody else's records are not to be trusted with our processes
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the owner lives
            clear_leftovers(lock.parent)
            shutil.rmtree(lock.parent, ignore_errors=True)
            swept.append(lock.parent)
    return swept
