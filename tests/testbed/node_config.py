"""The configuration files of one node: containerd, CNI and kubelet."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import images, network
from testbed.cgroups import Cgroups
from testbed.packages import CNI_PLUGINS

KUBELET_PORT = 10250

# Plugins that look for file systems and services the testbed does not use, and warn when they are not there.
_UNUSED_CONTAINERD_PLUGINS = [
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.internal.v1.opt",
    "io.containerd.tracing.processor.v1.otlp",
]


@dataclass(frozen=True)
class NodeFiles:
    """Where one node keeps its things, all below one folder."""

    folder: Path

    @property
    def containerd_socket(self) -> Path:
        """The address of its containerd. A Unix socket's path may be 107 bytes long at most."""
        return self.folder / "containerd.sock"

    @property
    def containerd_config(self) -> Path:
        """containerd.toml"""
        return self.folder / "containerd.toml"

    @property
    def containerd_state(self) -> Path:
        """What a reboot clears: containerd's view of what runs."""
        return self.folder / "containerd-state"

    @property
    def cni(self) -> Path:
        """The folder with its one CNI configuration."""
        return self.folder / "cni"

    @property
    def kubelet_config(self) -> Path:
        """kubelet.yaml"""
        return self.folder / "kubelet.yaml"

    @property
    def own(self) -> Path:
        """What the node sees in place of the machine's folders: `own/var/lib/kubelet` and so on."""
        return self.folder / "own"

    @property
    def ready(self) -> Path:
        """Written by the holder process when the node's mounts are in place."""
        return self.folder / "mounted"


def write(files: NodeFiles, *, index: int, name: str, cgroups: Cgroups, client_ca: Path) -> None:
    """Write all of them. Two nodes written this way share no file, socket, address or device."""
    files.cni.mkdir(parents=True, exist_ok=True)
    (files.folder / "resolv.conf").write_text("")  # pods ask the cluster's DNS alone
    files.containerd_config.write_text(_containerd_toml(files))
    (files.cni / "10-orchestra.conflist").write_text(json.dumps(_cni(index), indent=1))
    kubelet = _kubelet(files, index, cgroups.kubelet_root(name), client_ca)
    files.kubelet_config.write_text(json.dumps(kubelet, indent=1))


def _containerd_toml(files: NodeFiles) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    # Without CAP_SYS_RESOURCE (a machine that is itself a container) runc may not lower its OOM score and dies
    # with "can't get final child's PID from pipe: EOF"; restrict_oom_score_adj keeps to what is allowed.
    return f"""\
version = 2
root = "{files.folder}/containerd"
state = "{files.containerd_state}"
disabled_plugins = {json.dumps(_UNUSED_CONTAINERD_PLUGINS)}
[grpc]
  address = "{files.containerd_socket}"
[{cri}]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [{cri}.cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{files.cni}"
  [{cri}.containerd]
    snapshotter = "{_snapshotter(files.folder)}"
    default_runtime_name = "runc"
    [{cri}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def _snapshotter(folder: Path) -> str:
    """Overlays do not stack on an overlay (a machine that is a container): copy the layers there instead."""
    command = ["stat", "-f", "-c", "%T", str(folder)]
    kind = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ).stdout.strip()
    return "native" if kind == "overlayfs" else "overlayfs"


def _cni(index: int) -> dict[str, Any]:
    # hairpinMode: a pod may reach itself by its own address. ipMasq: pods keep their addresses everywhere.
    subnet = network.pod_subnet(index)
    prefix = subnet.rpartition(".")[0]
    addresses = {"subnet": subnet, "rangeStart": f"{prefix}.10", "rangeEnd": f"{prefix}.250"}
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[addresses]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return {"cniVersion": "0.4.0", "name": "orchestra", "plugins": [bridge]}


def _kubelet(files: NodeFiles, index: int, cgroup_root: str, client_ca: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.node_address(index),
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(client_ca)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{files.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": False,
        # A developer's disk may be nearly full; that must not evict a test's pods.
        "evictionHard": {"memory.available": "10Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "clusterDomain": network.CLUSTER_DOMAIN,
        "clusterDNS": [network.DNS_ADDRESS],
        "resolvConf": str(files.folder / "resolv.conf"),
        "podLogsDir": str(files.folder / "pod-logs"),
        "volumePluginDir": str(files.folder / "volume-plugins"),
        # With the controller manager's grace period, a lost node is noticed in seconds instead of a minute.
        "nodeLeaseDurationSeconds": 4,
    }
