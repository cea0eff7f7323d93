"""What of this machine a cluster could change: looked at before and after, to show that nothing stays behind."""

import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed import leftovers
from testbed.cgroups import Cgroups
from testbed.node import OWN_FOLDERS


@dataclass(frozen=True)
class MachineState:
    """Two of these are equal when a cluster came and went without a trace. Processes are told by `marked`."""

    mounts: tuple[str, ...]
    network_devices: frozenset[str]
    routes: str
    rules: str
    forwarding: str
    has_cgroups: bool
    mount_points: frozenset[str]
    has_folder: bool


def look() -> MachineState:
    """The machine as it is now."""
    return MachineState(
        mounts=tuple(_mounts()),
        network_devices=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
        routes=_ip("route", "show", "table", "all"),
        rules=_ip("rule", "show"),
        forwarding=Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        has_cgroups=Cgroups().exist(),
        mount_points=frozenset(path for path in OWN_FOLDERS if Path(path).exists()),
        has_folder=leftovers.FOLDER.exists(),
    )


def marked(variable: str, value: str) -> dict[int, str]:
    """The running processes (pid -> name) that inherited this environment variable, without ourselves."""
    wanted = f"{variable}={value}".encode()
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        # A process may end while we look; a zombie's environment is empty.
        with contextlib.suppress(OSError):
            if wanted in (path / "environ").read_bytes().split(b"\0") and int(path.name) != os.getpid():
                found[int(path.name)] = (path / "comm").read_text().strip()
    return found


def _mounts() -> list[str]:
    # Without the mount id and the parent's, which count up.
    return sorted(" ".join(line.split()[2:]) for line in Path("/proc/self/mountinfo").read_text().splitlines())


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", "-4", *arguments], capture_output=True, text=True, check=True)
    return done.stdout
