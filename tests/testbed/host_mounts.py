"""Read-only mounts that lend a pod this machine's programs, so that no image has to hold torch."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.images import HOST

Json = dict[str, Any]


@dataclass(frozen=True)
class Mounts:
    """Two halves of a pod: `volumes` for its spec, `mounts` for its containers' `volumeMounts`."""

    volumes: list[Json]
    mounts: list[Json]


def usr_mounts() -> Mounts:
    """The machine's /usr alone: a shell and its friends in the otherwise empty `host` image."""
    return _read_only([Path("/usr")])


def torch_mounts(*more: Path) -> Mounts:
    """/usr, the Python that runs this and its virtual environment (with torch), each where the machine has it.

    `more` adds further folders. A `/dev/shm` in memory comes with it: torch's data loaders want a large one.
    """
    folders = [Path("/usr"), Path(os.path.realpath(sys.base_prefix)), Path(sys.prefix), *more]
    lent = _read_only(folders)
    shm = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    return Mounts([*lent.volumes, shm], [*lent.mounts, {"name": "shm", "mountPath": "/dev/shm"}])


def program(name: str) -> str:
    """Where a program of the virtual environment (`python`, `torchrun`) is, in a pod with `torch_mounts`."""
    return str(Path(sys.prefix, "bin", name))


def container(name: str, command: Sequence[str], mounts: Mounts, **more: Any) -> Json:
    """A container of the `host` image with these mounts; `more` is added as it is (`resources=...`)."""
    return {
        "name": name,
        "image": HOST,
        "imagePullPolicy": "Never",
        "command": list(command),
        "volumeMounts": mounts.mounts,
        **more,
    }


def _read_only(folders: Sequence[Path]) -> Mounts:
    # A folder inside another one that is lent comes with it; mounting it again would need a mount point.
    kept = [folder for folder in dict.fromkeys(folders) if not any(other in folder.parents for other in folders)]
    named = [(f"host-{number}", str(folder)) for number, folder in enumerate(kept)]
    return Mounts(
        [{"name": name, "hostPath": {"path": path, "type": "Directory"}} for name, path in named],
        [{"name": name, "mountPath": path, "readOnly": True} for name, path in named],
    )
