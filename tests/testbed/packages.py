"""The Debian packages tier 2 stands on, and how they get onto the machine.

Tier 1 needs none of this. Nothing here starts a service: a package's own daemon (containerd's) stays off,
because each node of the testbed runs a containerd of its own.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CNI_PLUGINS = Path("/usr/lib/cni")

# Debian's maintainer scripts ask this program whether they may start a service; 101 means no.
_POLICY = Path("/usr/sbin/policy-rc.d")
_POLICY_TEXT = "#!/bin/sh\n# Written by the orchestra testbed while it installs packages: start no service.\nexit 101\n"


@dataclass(frozen=True)
class Requirement:
    """A program the nodes call, and the packages that bring it."""

    program: str
    packages: tuple[str, ...]

    def is_met(self) -> bool:
        """Whether the program is on this machine (also where only root's PATH has it)."""
        return shutil.which(self.program, path=system_path()) is not None


REQUIREMENTS = (
    Requirement("containerd", ("containerd",)),
    Requirement("runc", ("runc",)),
    Requirement(str(CNI_PLUGINS / "bridge"), ("containernetworking-plugins",)),
    Requirement("ip", ("iproute2",)),
    Requirement("nsenter", ("util-linux",)),
    Requirement("cc", ("gcc", "libc6-dev")),  # for the pause image, one static C program
)


class PackagesError(Exception):
    """Tier 2 cannot run: programs are missing and we may not install them. The text says what to install."""


def system_path() -> str:
    """PATH with the administrator's folders, which a plain user's PATH often lacks."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/bin", "/bin"])


def missing() -> list[str]:
    """Names of the Debian packages that would bring what is not there, in a stable order."""
    return [name for need in REQUIREMENTS if not need.is_met() for name in need.packages]


def can_install() -> bool:
    """Whether this process may install Debian packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def ensure(say: Callable[[str], None]) -> None:
    """Have every program tier 2 calls, installing packages when root and apt allow it.

    Raises PackagesError, in one line, when they are missing and cannot be installed here.
    """
    names = missing()
    if not names:
        return
    if not can_install():
        raise PackagesError(f"install these packages as root: apt-get install {' '.join(names)}")
    say(f"installing packages: {' '.join(names)}")
    with _services_stay_off():
        if not _apt_install(names):
            # The lists may be old or absent, the usual reason for a failed install.
            say("refreshing apt's lists")
            _apt("update")
            if not _apt_install(names):
                raise PackagesError(f"apt-get could not install {' '.join(names)}; run it by hand to see why")
    left = missing()
    if left:
        raise PackagesError(f"apt-get said yes, but these are still missing: {' '.join(left)}")


def _apt_install(names: list[str]) -> bool:
    return _apt("install", "--no-install-recommends", *names)


def _apt(*arguments: str) -> bool:
    command = ["apt-get", "-qq", "-y", "-o", "DPkg::Lock::Timeout=300", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": system_path()}
    done = subprocess.run(command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode == 0


@contextmanager
def _services_stay_off() -> Iterator[None]:
    """Refuse service starts while packages are installed; a policy the machine already has is respected."""
    ours = not _POLICY.exists() or _POLICY.read_text() == _POLICY_TEXT
    if ours:
        _POLICY.write_text(_POLICY_TEXT)
        _POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            _POLICY.unlink(missing_ok=True)
