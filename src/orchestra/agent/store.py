"""The rendezvous store, where this node's launcher holds it for the others.

Their launchers ask it ten times a second and fall, with all their ranks, when it does not answer. So a node that has
finished keeps its launcher until the others have hung up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

_PORT = re.compile(r"^--(?:rdzv[-_]endpoint=.*:|master[-_]port=)(\d+)$")
_ESTABLISHED = "01"


def store_port(launcher_argv: Sequence[str]) -> int | None:
    """The port on the launch line."""
    return next((int(match.group(1)) for match in map(_PORT.match, launcher_argv) if match), None)


def guests(port: int, launcher_pid: int) -> int:
    """How many connections others have to the store in this launcher."""
    process = Path("/proc") / str(launcher_pid)
    own = _sockets(process / "fd")
    served = asked = 0
    for name in ("tcp", "tcp6"):
        for local, remote, inode in _connections(process / "net" / name):
            if inode in own:
                served += local == port
                asked += remote == port  # the launcher is its own guest, too
    return served - asked


def _connections(table: Path) -> list[tuple[int, int, str]]:
    """Local port, remote port and inode of each established connection."""
    try:
        lines = table.read_text("ascii").splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [(_port(row[1]), _port(row[2]), row[9]) for row in rows if row[3] == _ESTABLISHED]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _sockets(folder: Path) -> set[str]:
    found = set()
    try:
        for file in folder.iterdir():
            target = os.readlink(file)  # noqa: PTH115
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:  # it is gone, or going
        pass
    return found
