"""One node of the cluster: a room of its own with a containerd and a kubelet in it, and what can befall it.

The room is a mount namespace (the folders that no flag of the kubelet moves are its own), a network namespace
and a control group. A holder process keeps the namespaces; mounts and devices vanish with the node's last process.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from testbed import network, node_config
from testbed.cgroups import Cgroups
from testbed.packages import system_path
from testbed.processes import Processes
from testbed.waiting import PATIENCE, wait_until

# Folders the node has to itself. They must exist on the machine, as mount points.
OWN_FOLDERS = ("/var/lib/kubelet", "/var/log/containers", "/var/lib/cni", "/run/containerd", "/run/netns")

_HOLD = """
set -e
mount --make-rshared /
own=$1 ready=$2; shift 2
for folder in "$@"; do mkdir -p "$own$folder"; mount --bind "$own$folder" "$folder"; done
: >"$ready"
exec sleep infinity
"""


class NodeError(Exception):
    """A node did not do what it was told; the text has the end of the log that says why."""


class Node:
    """A node, by its number. Any process may hold one: what it knows is in the cluster's folder."""

    def __init__(self, index: int, folder: Path, processes: Processes, *, die_with_parent: bool, nodes: int) -> None:
        """Nothing is started. `folder` is the cluster's, `nodes` how many nodes the cluster has."""
        self.index = index
        self.name = f"n{index}"
        self.address = network.node_address(index)
        self.files = node_config.NodeFiles(folder / self.name)
        self.kubeconfig = folder / f"{self.name}.kubeconfig"
        self.cgroups = Cgroups()
        self._processes = processes
        self._die_with_parent = die_with_parent
        self._nodes = nodes

    def boot(self, kubelet: Path, client_ca: Path, images: list[Path]) -> None:
        """Switch the node on for the first time, up to where its kubelet can be started."""
        self.files.folder.mkdir(parents=True, exist_ok=True)
        link = self.files.folder / "kubelet-program"
        link.unlink(missing_ok=True)
        link.symlink_to(kubelet)
        node_config.write(self.files, index=self.index, name=self.name, cgroups=self.cgroups, client_ca=client_ca)
        self._power_on()
        for image in images:
            self.import_image(image)

    def start_kubelet(self) -> None:
        """Start the kubelet. It registers the node; when it is Ready is the API server's to say."""
        command: list[str | Path] = [
            self.files.folder / "kubelet-program",
            f"--config={self.files.kubelet_config}",
            f"--kubeconfig={self.kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        ]
        self._start_inside("kubelet", command)

    def import_image(self, tar: Path) -> None:
        """Load a docker-archive, so that pods of this node can use it with `imagePullPolicy: Never`."""
        done = self._ctr("images", "import", str(tar))
        if done.returncode != 0:
            raise NodeError(f"{self.name} could not import {tar}: {done.stderr.strip()}")

    def kill_kubelet(self) -> None:
        """SIGKILL the kubelet alone: the pods run on and nobody tells the API server about them."""
        self._processes.kill9(self._called("kubelet"))

    def cut(self) -> None:
        """Cut the node off: kubelet and pods reach nobody outside it, and nobody gets a closed connection."""
        network.cut(self.index)

    def heal(self) -> None:
        """Undo `cut`; nothing happens on a node that is not cut off."""
        if network.is_cut(self.index):
            network.heal(self.index)

    def die(self) -> None:
        """What a power cut looks like to the others: everything stops at once, and not even a FIN is sent."""
        network.unplug(self.index)
        self.kill_everything()
        self.cgroups.remove(self.name)

    def revive(self) -> None:
        """Bring the node back, whatever befell it: boot it after `die`, start a killed kubelet, heal a cut."""
        if not self._processes.alive(self._called("holder")):
            self._clear_what_a_reboot_clears()
            self._power_on()
        self.heal()
        if not self._processes.alive(self._called("containerd")):
            self._start_containerd()
        if not self._processes.alive(self._called("kubelet")):
            self.start_kubelet()

    def kill_everything(self) -> None:
        """SIGKILL every process of the node, in the order in which none of them restarts another."""
        for role in ("kubelet", "containerd"):
            self._processes.kill9(self._called(role))
        wait_until(f"{self.name}: shims end", lambda: not kill_shims(self.files.containerd_socket), timeout=PATIENCE)
        self.cgroups.kill(self.name)
        self._processes.kill9(self._called("holder"))

    def is_running(self) -> bool:
        """Whether its holder, containerd and kubelet are alive; says nothing about their health."""
        roles = ("holder", "containerd", "kubelet")
        return all(self._processes.alive(self._called(role)) for role in roles)

    def _power_on(self) -> None:
        self.cgroups.make(self.name)
        self.files.ready.unlink(missing_ok=True)
        hold: list[str | Path] = ["sh", "-c", _HOLD, "holder", self.files.own, self.files.ready, *OWN_FOLDERS]
        self._start("holder", ["unshare", "--mount", "--net", "--propagation", "private", *hold])
        wait_until(f"{self.name}: mounts in place", self._mounted, timeout=PATIENCE, interval=0.01)
        network.plug(self.index, self._holder_pid(), self._nodes)
        self._start_containerd()

    def _mounted(self) -> bool:
        if not self._processes.alive(self._called("holder")):
            raise NodeError(f"{self.name}'s holder ended: {self._processes.log_tail(self._called('holder'))}")
        return self.files.ready.exists()

    def _start_containerd(self) -> None:
        self.files.containerd_socket.unlink(missing_ok=True)
        self._start_inside("containerd", ["containerd", "--config", self.files.containerd_config])
        wait_until(f"{self.name}: containerd answers", self._containerd_answers, timeout=PATIENCE, interval=0.1)

    def _containerd_answers(self) -> bool:
        if not self._processes.alive(self._called("containerd")):
            tail = self._processes.log_tail(self._called("containerd"))
            raise NodeError(f"{self.name}'s containerd ended:\n{tail}")
        return self.files.containerd_socket.exists() and self._ctr("version").returncode == 0

    def _clear_what_a_reboot_clears(self) -> None:
        for folder in (self.files.containerd_state, *(Path(f"{self.files.own}{own}") for own in OWN_FOLDERS)):
            if folder == self.files.containerd_state or "/run/" in str(folder.relative_to(self.files.folder)):
                shutil.rmtree(folder, ignore_errors=True)

    def _start_inside(self, role: str, argv: list[str | Path]) -> None:
        enter = ["nsenter", "--target", str(self._holder_pid()), "--mount", "--net"]
        self._start(role, [*enter, *argv])

    def _start(self, role: str, argv: list[str | Path]) -> None:
        self._processes.start(
            self._called(role),
            argv,
            die_with_parent=self._die_with_parent,
            cwd=self.files.folder,
            env={"PATH": system_path()},
        )

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["ctr", "--address", str(self.files.containerd_socket), "--namespace", "k8s.io", *arguments]
        environment = {"PATH": system_path()}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    def _holder_pid(self) -> int:
        return self._processes.record(self._called("holder")).pid

    def _called(self, role: str) -> str:
        return f"{self.name}-{role}"


def kill_shims(socket: Path) -> bool:
    """SIGKILL the containerd shims that serve this socket, which outlive their containerd by design.

    True when there were any: ask again, one may just have been started.
    """
    shims = _shims_of(socket)
    for pid in shims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(shims)


def _shims_of(socket: Path) -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # A zombie's command line is empty, so a dead shim is not found again.
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"containerd-shim" in words[0] and str(socket).encode() in words:
                pids.append(int(path.parent.name))
    return pids
