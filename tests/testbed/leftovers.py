"""What a cluster puts on the machine, and how all of it is taken away again.

One way for both cases, an orderly end and a cluster whose every process was killed: nothing in a testbed is
worth saving, so everything is killed at once and then cleared. Nothing is ever killed by its name: processes go
by their records, shims by the socket they serve, pods by our control groups.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from testbed import network, processes
from testbed.cgroups import ROOT as CGROUP
from testbed.cgroups import Cgroups
from testbed.node import OWN_FOLDERS, kill_shims
from testbed.waiting import PATIENCE, wait_until

# One cluster a machine (its addresses and control groups are fixed), so one folder and one lock.
FOLDER = Path("/var/lib/orchestra-testbed")
_LOCK = Path("/run/orchestra-testbed.lock")
_MADE = "mount-points-made"
_CONTROL_PLANE = "control-plane"


class ClusterBusyError(Exception):
    """Somebody else starts, stops or owns the machine's one cluster; the text says who."""


class LeftoversError(Exception):
    """Something of a cluster could not be removed; the text says what and where."""


@contextlib.contextmanager
def the_one_cluster(what: str) -> Iterator[None]:
    """Be the only one who starts, stops or owns the cluster; ends with the process, however that ends."""
    lock = _take_lock()
    try:
        os.truncate(lock, 0)
        os.write(lock, f"process {os.getpid()} ({what})".encode())
        yield
    finally:
        _LOCK.unlink(missing_ok=True)
        os.close(lock)


def _take_lock() -> int:
    while True:
        lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it removed the file when done: a lock on a removed file is worth nothing.
            if _LOCK.exists() and os.fstat(lock).st_ino == _LOCK.stat().st_ino:
                return lock
        except BlockingIOError:
            who = os.pread(lock, 200, 0).decode() or "another process"
            os.close(lock)
            raise ClusterBusyError(f"the machine's one cluster is held by {who}; wait for its end") from None
        except FileNotFoundError:
            pass
        os.close(lock)


def control_plane_folder(folder: Path = FOLDER) -> Path:
    """Where the cluster's control plane lives: a folder of its own, since starting it clears the folder."""
    return folder / _CONTROL_PLANE


def make_mount_points(folder: Path) -> None:
    """Have the folders the nodes mount their own over, remembering which ones the machine did not have."""
    made = [path for path in OWN_FOLDERS if not Path(path).exists()]
    (folder / _MADE).write_text("\n".join(made))
    for path in made:
        Path(path).mkdir(parents=True)


def found(folder: Path = FOLDER) -> list[str]:
    """Everything of a cluster that is on this machine now, one line each; empty when there is nothing."""
    listed = [f"process {name}" for part in _process_folders(folder) for name in _running(part)]
    listed += network.leftovers()
    if Cgroups().exist():
        listed.append(f"cgroup /{CGROUP}")
    if folder.exists():
        listed.append(f"folder {folder}")
    return listed


def clear(folder: Path = FOLDER) -> list[str]:
    """Remove everything of a cluster, alive or dead; returns what there was. Call with the lock held."""
    there = found(folder)
    if not there:
        return []
    cgroups = Cgroups()
    for part in _process_folders(folder):
        processes.clear_leftovers(part)
    sockets = [node / "containerd.sock" for node in folder.glob("n[0-9]*")]
    wait_until("the nodes' shims end", lambda: not [None for socket in sockets if kill_shims(socket)], timeout=PATIENCE)
    cgroups.kill()
    network.down()
    cgroups.remove()
    _remove_folder(folder)
    return there


def _remove_folder(folder: Path) -> None:
    if not folder.exists():
        return
    mounted = [mount for mount in _mount_points() if mount.startswith(f"{folder}/")]
    if mounted:
        raise LeftoversError(f"{mounted[0]} is still mounted; unmount it (umount {mounted[0]}) and try again")
    made = folder / _MADE
    mount_points = made.read_text().split() if made.exists() else []
    shutil.rmtree(folder)
    for path in mount_points:
        # Somebody else may use it by now; then it stays.
        with contextlib.suppress(OSError):
            Path(path).rmdir()


def _mount_points() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4].replace("\\040", " ") for line in lines]


def _process_folders(folder: Path) -> list[Path]:
    return [folder, control_plane_folder(folder)]


def _running(folder: Path) -> list[str]:
    records = processes.Processes(folder).records()
    return [record.name for record in records if processes.process_state(record) == "running"]
