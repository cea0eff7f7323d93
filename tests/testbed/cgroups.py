"""The nodes' control groups, on cgroup v1 (one hierarchy a controller) and on v2 (one for all).

Every node gets `/orchestra/<node>`; its kubelet (cgroupfs driver) puts the pods below it. What a killed
cluster left is found again by that one name.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = "orchestra"
_MOUNT = Path("/sys/fs/cgroup")
_V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")
_REMOVE_TIMEOUT = 10.0
_SHARES = {"cpu.shares": "16384", "cpu.weight": "1600"}
"""Sixteen processes' worth of a busy machine (v1, v2). All pods of all nodes are one group to the kernel, and would get
no more than one of thirty busy processes beside them does."""


class CgroupError(Exception):
    """A control group could not be made or removed; the text names it."""


class Cgroups:
    """The tree `/orchestra` in every hierarchy of this machine. `mount` is given only by tests."""

    def __init__(self, mount: Path = _MOUNT) -> None:
        """Look at the machine; nothing is made yet."""
        self.mount = mount
        self.is_v2 = (mount / "cgroup.controllers").exists()

    def kubelet_root(self, node: str) -> str:
        """The kubelet's `cgroupRoot` for a node."""
        return f"/{ROOT}/{node}"

    def hierarchies(self) -> list[Path]:
        """The mounts that can hold `/orchestra`: one on v2; on v1 one a controller, and perhaps `unified`."""
        if self.is_v2:
            return [self.mount]
        return sorted(path for path in self.mount.iterdir() if path.is_dir() and not path.is_symlink())

    def make(self, node: str) -> None:
        """Make the node's groups, ready for its kubelet. Making them twice is fine.

        On v2 this may switch controllers on at the root; they stay on, where systemd looks after them.
        """
        for hierarchy in self.hierarchies():
            if hierarchy.name == "unified" and not self.is_v2:
                continue  # it holds no controller; runc makes its groups there on its own
            folders = [hierarchy / ROOT, hierarchy / ROOT / node]
            if self.is_v2:
                self._enable_controllers(hierarchy)
            for folder in folders:
                folder.mkdir(exist_ok=True)
                if self.is_v2:
                    self._enable_controllers(folder)
                elif (hierarchy / "cpuset.cpus").exists():
                    # An empty cpuset takes no process; v1 does not inherit it.
                    for name in ("cpuset.cpus", "cpuset.mems"):
                        (folder / name).write_text((hierarchy / name).read_text())
            for name, share in _SHARES.items():
                if (hierarchy / ROOT / name).exists():
                    (hierarchy / ROOT / name).write_text(share)

    def kill(self, node: str | None = None) -> None:
        """End every process of a node's pods (of all nodes without a name), with SIGKILL."""
        deadline = time.monotonic() + _REMOVE_TIMEOUT
        while pids := self.pids(node):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise CgroupError(f"processes {sorted(pids)} under the cgroup /{ROOT} do not die")
            time.sleep(0.02)

    def pids(self, node: str | None = None) -> set[int]:
        """The processes in a node's groups (in all nodes' without a name) that are not yet zombies."""
        pids: set[int] = set()
        for folder in self._groups(node):
            # A group may go while we look, and a thread-mode group has no readable list.
            with contextlib.suppress(OSError):
                pids |= {int(line) for line in (folder / "cgroup.procs").read_text().split()}
        return {pid for pid in pids if not _is_zombie(pid)}

    def remove(self, node: str | None = None) -> None:
        """Remove a node's groups (the whole `/orchestra` without a name), which must hold no process."""
        deadline = time.monotonic() + _REMOVE_TIMEOUT
        while left := [group for group in self._groups(node) if not _rmdir(group)]:
            if time.monotonic() > deadline:
                raise CgroupError(f"the cgroup {left[0]} cannot be removed: it is still in use")
            time.sleep(0.02)

    def exist(self) -> bool:
        """Whether any group of ours is there."""
        return any((hierarchy / ROOT).exists() for hierarchy in self.hierarchies())

    def _groups(self, node: str | None) -> Iterator[Path]:
        """Our groups, children before their parents."""
        for hierarchy in self.hierarchies():
            top = hierarchy / ROOT / node if node else hierarchy / ROOT
            for folder, _, _ in os.walk(top, topdown=False):
                yield Path(folder)

    def _enable_controllers(self, folder: Path) -> None:
        """Let a v2 group hand its controllers on to its children."""
        available = (folder / "cgroup.controllers").read_text().split()
        control = folder / "cgroup.subtree_control"
        enabled = control.read_text().split()
        wanted = [name for name in _V2_CONTROLLERS if name in available and name not in enabled]
        try:
            for name in wanted:
                control.write_text(f"+{name}")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            raise CgroupError(
                f"{folder} holds processes of its own, so it cannot hand controllers on (cgroup v2). "
                "In a container, run the testbed where the root of the cgroup namespace is empty, or outside."
            ) from error


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _is_zombie(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state in {"Z", "X"}
