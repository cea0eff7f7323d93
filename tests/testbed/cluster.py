"""Tier 2: a control plane and two real nodes on one machine, for end-to-end tests and for people.

    with Cluster() as cluster:
        cluster.api.create("/api/v1/namespaces/default/pods", {...})
        cluster.nodes[1].die()
        cluster.nodes[1].revive()

One cluster a machine. Everything it has is in `leftovers.FOLDER`, where `Cluster.attach()` finds a running one.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import msgspec

from testbed import dns, gpus, images, leftovers, network, packages, schedulers, storage
from testbed.api import Api, ApiError
from testbed.control_plane import ControlPlane
from testbed.control_plane_options import ControlPlaneOptions, TokenUser
from testbed.node import Node
from testbed.processes import Processes
from testbed.programs import cache_folder, programs
from testbed.steps import Say, silent
from testbed.waiting import PATIENCE, wait_until

NODES = 2
_STATE = "cluster.json"
_SOURCES = Path(__file__).resolve().parents[1]


class CannotRunError(Exception):
    """Tier 2 cannot run on this machine; the text says why and what would help."""


class NotUpError(Exception):
    """There is no cluster to attach to, or it is not well; the text says what is wrong."""


class State(msgspec.Struct, frozen=True):
    """What another process must know of a running cluster."""

    kept: bool
    """Whether it outlives the process that started it."""
    gpus_per_node: int


class Cluster:
    """The machine's one cluster."""

    def __init__(
        self,
        *,
        scheduler: schedulers.Kind = "default",
        gpus_per_node: int = 8,
        kept: bool = False,
        say: Say = silent,
    ) -> None:
        """Nothing starts yet. A `kept` cluster outlives this process, until `leftovers.clear`."""
        self.folder = leftovers.FOLDER
        self.state = State(kept=kept, gpus_per_node=gpus_per_node)
        self.processes = Processes(self.folder)
        self.control_plane = ControlPlane(leftovers.control_plane_folder(), _control_plane_options(kept))
        self.nodes = self._make_nodes()
        self._scheduler: schedulers.Kind = scheduler
        self._say = say
        self._held = contextlib.ExitStack()

    # ---- life

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Have a fresh cluster whose nodes are Ready, whose DNS answers and whose claims are provisioned.

        What an earlier one left is cleared first. When it cannot start, nothing of it stays: CannotRunError,
        ClusterBusyError, or the error of what went wrong.
        """
        require_this_machine()
        packages.ensure(self._say)
        self._held.enter_context(leftovers.the_one_cluster("a test run" if not self.state.kept else "make cluster"))
        try:
            if cleared := leftovers.clear():
                self._say(f"cleared what an earlier cluster left: {', '.join(cleared)}")
            self._start()
        except BaseException:
            self.stop()
            raise
        if self.state.kept:
            self._held.close()

    def stop(self) -> None:
        """Remove everything of the cluster from the machine. May be called twice."""
        self.control_plane.stop()  # closes its proxies, too
        leftovers.clear()
        self._held.close()

    @classmethod
    def attach(cls, *, must_be_well: bool = True) -> "Cluster":
        """The kept cluster that is up; NotUpError when there is none, or when it is not well."""
        state = leftovers.FOLDER / _STATE
        try:
            known = msgspec.json.decode(state.read_bytes(), type=State)
        except (FileNotFoundError, PermissionError, msgspec.MsgspecError):
            raise NotUpError("no cluster is up; `make cluster` starts one") from None
        if not known.kept:
            raise NotUpError("the cluster that is up belongs to a test run; `make cluster` starts one to share")
        cluster = cls(kept=known.kept, gpus_per_node=known.gpus_per_node)
        cluster.control_plane = ControlPlane.attach(leftovers.control_plane_folder())
        if must_be_well and (sick := cluster.what_is_wrong()):
            raise NotUpError(f"the cluster is not well: {sick}; `make cluster` starts a new one")
        return cluster

    # ---- use

    @property
    def api(self) -> Api:
        """The admin's client."""
        return self.control_plane.admin

    @property
    def kubeconfig(self) -> Path:
        """The admin's kubeconfig."""
        return self.control_plane.admin_kubeconfig

    @property
    def programs(self) -> Path:
        """A folder for PATH: the cluster's kubectl."""
        return self.folder / "bin"

    def kubectl(self, *arguments: str, check: bool = True, text: str | None = None) -> str:
        """Run kubectl as admin; returns what it printed. A failure is an exception with what it said."""
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        command = [str(self.programs / "kubectl"), *arguments]
        done = subprocess.run(command, env=environment, input=text, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def import_image(self, archive: bytes) -> None:
        """Load a docker-archive (see `images.image`) on every node."""
        tar = self.folder / "import.tar"
        tar.write_bytes(archive)
        for node in self.nodes:
            node.import_image(tar)
        tar.unlink()

    @contextlib.contextmanager
    def namespace(self, prefix: str = "test-") -> Iterator[str]:
        """A fresh namespace in which pods can be created. Afterwards its pods are gone, and it is on its way out.

        Unlike on a control plane alone, pods end here in reality: they give their GPUs back before this returns.
        """
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": prefix}}
        name: str = self.api.create("/api/v1/namespaces", body)["metadata"]["name"]
        path = f"/api/v1/namespaces/{name}"
        wait_until(f"{name}'s ServiceAccount", lambda: self.api.find(f"{path}/serviceaccounts/default"))
        wait_until(f"{name}'s CA", lambda: self.api.find(f"{path}/configmaps/kube-root-ca.crt"))
        try:
            yield name
        finally:
            self.api.delete(f"{path}/pods", grace_seconds=1)
            wait_until(f"the pods of {name} end", lambda: not self.api.get(f"{path}/pods")["items"])
            self.api.delete(path)

    def node_is_ready(self, name: str) -> bool:
        """Whether the API server calls the node Ready and nothing keeps pods away from it."""
        node = self.api.find(f"/api/v1/nodes/{name}")
        if node is None or node["spec"].get("taints"):
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))

    def wait_for_nodes(self, timeout: float = PATIENCE) -> None:
        """Wait until every node is Ready and takes pods."""
        deadline = time.monotonic() + timeout
        for node in self.nodes:
            self.wait_for_node(node.name, timeout=max(deadline - time.monotonic(), 1.0))

    def wait_for_node(self, name: str, *, ready: bool = True, timeout: float = PATIENCE) -> None:
        """Wait until the node is Ready and takes pods, or until it is not so any more."""
        what = f"node {name} is {'Ready' if ready else 'not Ready'}"
        wait_until(what, lambda: self.node_is_ready(name) == ready, timeout=timeout, interval=0.1)

    def restore(self) -> None:
        """Undo whatever a test did to nodes and control plane; returns when the cluster is whole again."""
        self.control_plane.repair()
        for name in ("coredns", "storage"):
            if not self.processes.alive(name):
                self.processes.restart(name)
        for node in self.nodes:
            node.revive()
        self.wait_for_nodes()
        for node in self.nodes:
            gpus.set_gpus(self.api, node.name, self.state.gpus_per_node)
        wait_until("the cluster is well", lambda: not self.what_is_wrong())

    @contextlib.contextmanager
    def using_scheduler(self, kind: schedulers.Kind) -> Iterator[None]:
        """Let another scheduler program decide for a while, under the default scheduler's name."""
        schedulers.use(self.control_plane, kind)
        try:
            yield
        finally:
            schedulers.use(self.control_plane, "default")

    @contextlib.contextmanager
    def with_kai(self) -> Iterator[None]:
        """Run KAI beside the default scheduler for a while; KaiError where its programs are not at hand."""
        schedulers.start_kai(self.control_plane)
        try:
            yield
        finally:
            schedulers.stop_kai(self.control_plane)

    def what_is_wrong(self) -> str:
        """One line about the first thing that does not work, or nothing."""
        for processes in (self.control_plane.processes, self.processes):
            for record in processes.records():
                if not processes.alive(record.name):
                    return f"{record.name} does not run (log: {record.log})"
        try:
            if not self.api.ready():
                return "the API server does not answer"
            for node in self.nodes:
                if not self.node_is_ready(node.name):
                    return f"node {node.name} is not Ready"
        except (OSError, ApiError) as error:
            return f"the API server refuses: {error}"
        return "" if dns.is_ready() else "the DNS does not answer"

    def gather_logs(self, to: Path) -> Path:
        """Copy the logs of all processes, and what the API server knows of pods and events, into a folder."""
        self.control_plane.gather_logs(to)
        if self.processes.logs.exists():
            shutil.copytree(self.processes.logs, to, dirs_exist_ok=True)
        for node in self.nodes:
            # Containers come and go while we copy; what was there is enough.
            with contextlib.suppress(shutil.Error, FileNotFoundError):
                shutil.copytree(node.files.folder / "pod-logs", to / f"pods-on-{node.name}", dirs_exist_ok=True)
        for what in ("nodes", "pods", "events", "persistentvolumeclaims"):
            listing = self.kubectl("get", what, "-A", "-o", "wide", "--request-timeout=10s", check=False)
            (to / f"{what}.txt").write_text(listing)
        return to

    # ---- how it is started

    def _start(self) -> None:
        self._say("looking for the programs")
        found = programs()
        self.programs.mkdir(parents=True)
        (self.programs / "kubectl").symlink_to(found["kubectl"])
        leftovers.make_mount_points(self.folder)
        tars = images.standard_images(cache_folder() / "images")
        network.up()
        ca = self.control_plane.folder / "pki" / "ca.crt"
        self._say("starting the control plane and the nodes")
        with ThreadPoolExecutor(NODES) as pool:
            booting = [pool.submit(node.boot, found["kubelet"], ca, tars) for node in self.nodes]
            self.control_plane.start()
            self._write_kubeconfigs()
            for boot, node in zip(booting, self.nodes, strict=True):
                boot.result()
                node.start_kubelet()
        self._start_services(found["coredns"])
        if self._scheduler != "default":
            self._say(f"starting the {self._scheduler} scheduler")
            schedulers.use(self.control_plane, self._scheduler)
        self._say("waiting for the nodes")
        self.wait_for_nodes()
        for node in self.nodes:
            gpus.set_gpus(self.api, node.name, self.state.gpus_per_node)
        wait_until("the DNS answers", dns.is_ready)
        (self.folder / _STATE).write_bytes(msgspec.json.encode(self.state))

    def _start_services(self, coredns: Path) -> None:
        dns.grant(self.api)
        dns.write_corefile(self.folder / "Corefile", self.folder / "coredns.kubeconfig")
        self._start_process("coredns", [coredns, "-conf", self.folder / "Corefile"])
        storage.install(self.api)
        arguments = [self.folder / "storage.kubeconfig", self.folder / "volumes"]
        environment = {"PYTHONPATH": str(_SOURCES)}
        self._start_process("storage", [sys.executable, "-m", "testbed.storage", *arguments], environment)

    def _start_process(self, name: str, argv: list[str | Path], environment: dict[str, str] | None = None) -> None:
        lives_on = self.state.kept
        self.processes.start(name, argv, die_with_parent=not lives_on, cwd=self.folder, env=environment)

    def _write_kubeconfigs(self) -> None:
        users = {node.kubeconfig: _node_user(node.name).name for node in self.nodes}
        users |= {
            self.folder / "coredns.kubeconfig": dns.USER,
            self.folder / "storage.kubeconfig": storage.USER,
        }
        for path, user in users.items():
            self.control_plane.token_kubeconfig(user).rename(path)

    def _make_nodes(self) -> list[Node]:
        dies = not self.state.kept
        return [Node(index, self.folder, self.processes, die_with_parent=dies, nodes=NODES) for index in range(NODES)]


def require_this_machine() -> None:
    """Raise CannotRunError unless tier 2 can be had here (perhaps after installing packages)."""
    if sys.platform != "linux":
        raise CannotRunError("two real nodes need Linux")
    if os.geteuid() != 0:
        raise CannotRunError("two real nodes need root (namespaces, bridges, control groups)")
    if packages.missing() and not packages.can_install():
        raise CannotRunError(f"install these packages: {' '.join(packages.missing())}")


def _node_user(name: str) -> TokenUser:
    return TokenUser(f"system:node:{name}", ("system:nodes",))


def _control_plane_options(kept: bool) -> ControlPlaneOptions:
    nodes = [_node_user(f"n{index}") for index in range(NODES)]
    # A lost node is NotReady after some 8 s instead of 50; its pods are evicted 10 s later instead of 300.
    patience = [f"--default-{what}-toleration-seconds=10" for what in ("not-ready", "unreachable")]
    return ControlPlaneOptions(
        address=network.API_ADDRESS,
        port=443,
        service_range=network.SERVICE_RANGE,
        api_server_arguments=tuple(patience),
        controller_manager_arguments=("--node-monitor-grace-period=8s",),
        token_users=(*nodes, TokenUser(dns.USER), TokenUser(storage.USER)),
        die_with_parent=not kept,
    )
