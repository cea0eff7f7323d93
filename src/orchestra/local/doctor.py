"""What this machine needs to run jobs: looked at, never changed."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from pathlib import Path

from orchestra.api.doctor import Finding
from orchestra.local.home import Home
from orchestra.local.machine import Machine

_GIB = 1 << 30
_SHM = Path("/dev/shm")  # noqa: S108 -- that is what torch's data loaders use
_LEAST_SHM = 1 * _GIB
_LEAST_DISK = 5 * _GIB


def examine(home: Home | None = None) -> list[Finding]:
    """One finding a thing, in the order in which a job needs them."""
    return [_python(), _torch(), _gpus(Machine.here()), _shared_memory(), _disk(home or Home.of_user())]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", "ok", f"{version} at {sys.executable}")


def _torch() -> Finding:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        mend = "pip install 'orchestra[train]'"
        return Finding("torch", "missing", f"{sys.executable} has no torch: only plain programs run", mend)
    launcher = Path(sys.executable).with_name("torchrun")
    if not launcher.exists() and shutil.which("torchrun") is None:
        return Finding(
            "torch", "warning", f"{version}, but there is no torchrun", "pip install --force-reinstall torch"
        )
    return Finding("torch", "ok", version)


def _gpus(machine: Machine) -> Finding:
    if machine.gpus:
        return Finding("gpus", "ok", f"{len(machine.gpus)}: {', '.join(map(str, machine.gpus))}")
    if shutil.which("nvidia-smi") is None:
        return Finding("gpus", "warning", "none (no nvidia-smi here): jobs use the CPU", "")
    return Finding("gpus", "warning", "none that this process may use: jobs use the CPU", "nvidia-smi -L")


def _shared_memory() -> Finding:
    try:
        size = shutil.disk_usage(_SHM).total
    except OSError:
        return Finding(
            "shm", "warning", f"there is no {_SHM}: data loaders with workers will fail", "mount a tmpfs there"
        )
    text = f"{size / _GIB:.1f} GiB of {_SHM}"
    if size < _LEAST_SHM:
        return Finding("shm", "warning", f"{text}: too little for data loaders", "mount -o remount,size=8G /dev/shm")
    return Finding("shm", "ok", text)


def _disk(home: Home) -> Finding:
    place = next(folder for folder in (home.root, *home.root.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    text = f"{free / _GIB:.1f} GiB free for {home.root}"
    if free < _LEAST_DISK:
        return Finding("disk", "warning", f"{text}: checkpoints need more", "set ORCHESTRA_HOME to a larger disk")
    return Finding("disk", "ok", text)
