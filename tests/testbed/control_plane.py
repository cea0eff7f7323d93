"""Tier 1: a real control plane on loopback, made for breaking.

with ControlPlane() as plane, plane.namespace() as namespace:
    plane.admin.create(f"/api/v1/namespaces/{namespace}/configmaps", {...})
    plane.api_server.kill9()
    plane.etcd_delete(f"/registry/configmaps/{namespace}/a")
    plane.api_server.restart()
"""

import contextlib
import json
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from testbed import control_plane_options as command_lines
from testbed.api import Api, Json, suppress_conflict
from testbed.component import Component, ComponentDiedError
from testbed.control_plane_options import ControlPlaneOptions, Endpoints, TokenUser
from testbed.crds import install_crds
from testbed.etcd_client import EtcdClient
from testbed.fake_nodes import FakeNode
from testbed.kubeconfig import Access, read_kubeconfig
from testbed.pki import CertificateAuthority, service_account_key, write_private
from testbed.ports import free_port
from testbed.processes import Processes, clear_leftovers
from testbed.programs import Programs, programs
from testbed.proxy import TcpProxy
from testbed.temporary_folder import TemporaryFolder

_PREFIX = "orchestra-control-plane-"
_PORT_ATTEMPTS = 5
_COMPONENT_USERS = (
    TokenUser("admin", ("system:masters",)),
    TokenUser("system:kube-controller-manager"),
    TokenUser("system:kube-scheduler"),
)


class ApiServerProxy(TcpProxy):
    """A breakable way to the API server."""

    def __init__(self, access: Access, target: tuple[str, int], folder: Path) -> None:
        super().__init__(target)
        self.url = f"https://127.0.0.1:{self.port}"
        self._folder = folder
        self.kubeconfig = self.kubeconfig_for(access)
        """The admin's, through this proxy."""

    def kubeconfig_for(self, access: Access | Path) -> Path:
        """The same rights as another kubeconfig, through this proxy."""
        if isinstance(access, Path):
            access = read_kubeconfig(access)
        return access.through(self.url).write(self._folder / f"proxy-{self.port}-{secrets.token_hex(4)}.kubeconfig")


class ControlPlane:
    """etcd, kube-apiserver and, unless told otherwise, controller manager and scheduler.

    Everything is in one folder: state, logs, certificates, kubeconfigs. Without a folder of the caller's it
    is a temporary one that goes with the control plane, which then can be started once. Several can run at a
    time.
    """

    def __init__(self, folder: Path | None = None, options: ControlPlaneOptions | None = None) -> None:
        self.options = options or ControlPlaneOptions()
        self._temporary: TemporaryFolder | None = None
        if folder is None:
            self._temporary = TemporaryFolder(_PREFIX)
            folder = self._temporary.path
        self.folder = folder.absolute()
        self.processes = Processes(self.folder)
        self._ports = Endpoints(0, 0, 0)
        self._proxies: list[TcpProxy] = []
        self.etcd = Component(self.processes, "etcd", self._etcd_serves)
        self.api_server = Component(self.processes, "kube-apiserver", lambda: self.admin.ready())
        self.controller_manager = Component(self.processes, "kube-controller-manager", self._controllers_work)
        self.scheduler = Component(self.processes, "kube-scheduler", lambda: True)

    # ---- life

    def __enter__(self) -> "ControlPlane":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until it works. What goes wrong is an exception with the end of the log.

        A folder that a killed run left behind is cleared first.
        """
        found = self._programs()
        clear_leftovers(self.folder)
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)
        try:
            self._write_certificates_and_tokens()
            self._start_on_free_ports(found)
            self._start_controllers(found)
        except BaseException as error:
            for record in self.processes.records():  # the logs go with the folder, so the error brings their ends
                error.add_note(f"The end of {record.name}'s log:\n{self.processes.log_tail(record.name, 10)}")
            self.stop()
            raise

    @classmethod
    def attach(cls, folder: Path) -> "ControlPlane":
        """The control plane that another process started in this folder, and left running."""
        plane = cls(folder, msgspec.json.decode((folder / "options.json").read_bytes(), type=ControlPlaneOptions))
        plane._ports = msgspec.json.decode((folder / "ports.json").read_bytes(), type=Endpoints)
        plane._connect()
        return plane

    def stop(self) -> None:
        """Kill everything by process id, and remove the folder if it was a temporary one. May be called
        twice.
        """
        for proxy in self._proxies:
            proxy.close()
        self._proxies.clear()
        self.processes.stop_all(timeout=0)  # nothing of the state is wanted later, so nobody is asked politely
        if self._temporary is not None:
            self._temporary.remove()
            self._temporary = None

    def repair(self) -> None:
        """Bring back what a test has killed or paused, and wait until it works."""
        for component in (self.etcd, self.api_server, self.controller_manager, self.scheduler):
            if component.was_started():
                component.repair()

    # ---- access

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return f"https://{self.options.address}:{self._ports.api_server}"

    @property
    def admin_kubeconfig(self) -> Path:
        """A kubeconfig that may do everything."""
        return self.folder / "admin.kubeconfig"

    def token_kubeconfig(self, user: str) -> Path:
        """The kubeconfig of one of `ControlPlaneOptions.token_users`."""
        tokens: dict[str, str] = json.loads((self.folder / "pki" / "tokens.json").read_text())
        return self._access(token=tokens[user]).write(self._kubeconfig_path(user))

    def user_kubeconfig(self, name: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig for any user in any groups, by a client certificate. The user has no rights but
        theirs.
        """
        authority = self.certificate_authority
        access = Access(self.url, authority.pair.certificate, client=authority.client(name, groups))
        return access.write(self._kubeconfig_path(name))

    def service_account_kubeconfig(self, namespace: str, name: str, *, seconds: int = 3600) -> Path:
        """A kubeconfig with a token of an existing ServiceAccount, as a pod of it would have."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        answer = self.admin.create(path, {**request, "spec": {"expirationSeconds": seconds}})
        access = self._access(token=answer["status"]["token"], namespace=namespace)
        return access.write(self._kubeconfig_path(f"{namespace}-{name}"))

    def proxy(self) -> ApiServerProxy:
        """A TCP proxy to the API server that can freeze, cut and refuse. Closed with the control plane, if
        not before.
        """
        target = (self.options.address, self._ports.api_server)
        proxy = ApiServerProxy(read_kubeconfig(self.admin_kubeconfig), target, self.folder)
        self._proxies.append(proxy)
        return proxy

    # ---- what tests need on it

    @contextlib.contextmanager
    def namespace(self, prefix: str = "test-") -> Iterator[str]:
        """A fresh namespace in which pods can be created; deleted afterwards, without waiting for its end.

        Its pods are deleted by force, because on a fake node nobody would ever confirm their end.
        """
        body: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": prefix}}
        name: str = self.admin.create("/api/v1/namespaces", body)["metadata"]["name"]
        path = f"/api/v1/namespaces/{name}"
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        # The controller manager would do it too, but late when the API server was just restarted under it.
        with suppress_conflict():
            self.admin.create(f"{path}/serviceaccounts", account)
        try:
            yield name
        finally:
            if self.api_server.alive():
                self.admin.delete(f"{path}/pods", grace_seconds=0)
                self.admin.delete(path)

    def fake_node(
        self, name: str, capacity: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None
    ) -> FakeNode:
        """A Ready node with this capacity (`{"nvidia.com/gpu": "8"}`) on top of 64 CPUs, 256 GiB and 250
        pods.
        """
        return FakeNode(self.admin, name, capacity or {}, labels or {})

    def install_crds(self, source: Path | Sequence[Path]) -> list[str]:
        """Apply the CustomResourceDefinitions of a folder or of files and wait until they are served."""
        return install_crds(self.admin, source)

    def etcd_delete(self, key: str, *, prefix: bool = False) -> int:
        """Delete a key such as `/registry/pods/default/a` behind the API server's back; returns how many."""
        return self.etcd_client.delete(key, prefix=prefix)

    def etcd_compact(self) -> int:
        """Make etcd forget all its history; returns the revision it now begins with."""
        return self.etcd_client.compact()

    def audit_events(self) -> list[Json]:
        """Each answered request so far, oldest first. Needs `ControlPlaneOptions.audit`."""
        log = self.folder / "logs" / "audit.jsonl"
        lines = log.read_bytes().splitlines(keepends=True) if log.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def gather_logs(self, to: Path) -> Path:
        """Copy the logs of all components into a folder."""
        to.mkdir(parents=True, exist_ok=True)
        if self.processes.logs.exists():
            shutil.copytree(self.processes.logs, to, dirs_exist_ok=True)
        return to

    # ---- how it is started

    def _programs(self) -> Programs:
        needed = ["etcd", "kube-apiserver"]
        if self.options.controller_manager:
            needed.append("kube-controller-manager")
        if self.options.scheduler and self.options.scheduler_program is None:
            needed.append("kube-scheduler")
        return programs(*needed)

    def _write_certificates_and_tokens(self) -> None:
        pki = self.folder / "pki"
        self.folder.mkdir(parents=True, exist_ok=True)
        authority = CertificateAuthority()
        authority.pair.write(pki, "ca")
        authority.server("kube-apiserver", command_lines.server_names(self.options)).write(pki, "apiserver")
        authority.client("kube-apiserver-kubelet-client", ["system:masters"]).write(pki, "kubelet-client")
        private, public = service_account_key()
        write_private(pki / "service-account.key", private)
        write_private(pki / "service-account.pub", public)
        users = {user.name: user for user in (*_COMPONENT_USERS, *self.options.token_users)}
        tokens = {name: secrets.token_hex(16) for name in users}
        lines = [f'{tokens[name]},{name},{name},"{",".join(user.groups)}"\n' for name, user in users.items()]
        write_private(pki / "tokens.csv", "".join(lines).encode())
        write_private(pki / "tokens.json", json.dumps(tokens).encode())
        (self.folder / "audit-policy.yaml").write_text(command_lines.AUDIT_POLICY)
        (self.folder / "options.json").write_bytes(msgspec.json.encode(self.options))

    def _start_on_free_ports(self, found: Programs) -> None:
        """Whoever looks for a free port and then uses it can be too late: then another one is tried."""
        for attempt in range(_PORT_ATTEMPTS):
            self._ports = Endpoints(self.options.port or free_port(self.options.address), free_port(), free_port())
            (self.folder / "ports.json").write_bytes(msgspec.json.encode(self._ports))
            self._connect()
            etcd = command_lines.etcd_command(found["etcd"], self.folder, self._ports, self.options)
            server = command_lines.api_server_command(found["kube-apiserver"], self.folder, self._ports, self.options)
            self._start_process("etcd", etcd)
            self._start_process("kube-apiserver", server)  # it waits for etcd on its own
            try:
                self.etcd.wait_ready()
                self.api_server.wait_ready()
                return
            except ComponentDiedError as error:
                if "address already in use" not in error.log_tail or attempt == _PORT_ATTEMPTS - 1:
                    raise
            self.processes.stop_all(timeout=0)
            shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def _start_controllers(self, found: Programs) -> None:
        options = self.options
        if options.controller_manager:
            name = "kube-controller-manager"
            self.token_kubeconfig("system:kube-controller-manager").rename(self.folder / f"{name}.kubeconfig")
            command = command_lines.controller_manager_command(found[name], self.folder, options)
            self._start_process(name, command)
        if options.scheduler:
            name = "kube-scheduler"
            kubeconfig = self.folder / f"{name}.kubeconfig"
            self.token_kubeconfig("system:kube-scheduler").rename(kubeconfig)
            if options.scheduler_config is not None:
                text = options.scheduler_config.replace("{kubeconfig}", str(kubeconfig))
                (self.folder / "scheduler.yaml").write_text(text)
            program = Path(options.scheduler_program) if options.scheduler_program else found[name]
            self._start_process(name, command_lines.scheduler_command(program, self.folder, options))
        if options.controller_manager:
            self.controller_manager.wait_ready()

    def _start_process(self, name: str, command: Sequence[str]) -> None:
        self.processes.start(name, command, die_with_parent=self.options.die_with_parent, cwd=self.folder)

    def _connect(self) -> None:
        """Make the clients for the ports we have now."""
        self.certificate_authority = CertificateAuthority.load(self.folder / "pki")
        self.etcd_client = EtcdClient(f"http://127.0.0.1:{self._ports.etcd_client}")
        self.token_kubeconfig("admin").rename(self.admin_kubeconfig)
        self.admin = Api.from_kubeconfig(self.admin_kubeconfig)

    def _etcd_serves(self) -> bool:
        """It is of use only when a running API server has found it again, which that tries ever less
        often.
        """
        return self.etcd_client.healthy() and (not self.api_server.alive() or self.admin.ready())

    def _controllers_work(self) -> bool:
        return self.admin.find("/api/v1/namespaces/default/serviceaccounts/default") is not None

    def _access(self, *, token: str, namespace: str = "default") -> Access:
        return Access(self.url, self.certificate_authority.pair.certificate, token=token, namespace=namespace)

    def _kubeconfig_path(self, name: str) -> Path:
        safe = "".join(letter if letter.isalnum() else "-" for letter in name)
        return self.folder / f"user-{safe}-{secrets.token_hex(4)}.kubeconfig"
