"""What a control plane can be told, and the command lines that follow from it."""

import ipaddress
from pathlib import Path

import msgspec


class TokenUser(msgspec.Struct, frozen=True):
    """A user that the API server knows by a fixed token from its start on."""

    name: str
    groups: tuple[str, ...] = ()


class ControlPlaneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All of it optional. Extra arguments come last on their command lines, so they win over ours."""

    address: str = "127.0.0.1"
    """Where the API server listens, and what it tells its clients."""
    port: int = 0
    """0 takes a free one, and another when somebody else was faster."""
    service_range: str = "10.0.0.0/24"
    controller_manager: bool = True
    scheduler: bool = True
    audit: bool = False
    """Record each request, for `ControlPlane.audit_events`: who asked for what, how often."""
    etcd_arguments: tuple[str, ...] = ()
    api_server_arguments: tuple[str, ...] = ()
    controller_manager_arguments: tuple[str, ...] = ()
    scheduler_arguments: tuple[str, ...] = ()
    scheduler_config: str | None = None
    """Text of a KubeSchedulerConfiguration; `{kubeconfig}` in it becomes the path of the scheduler's
    kubeconfig.
    """
    scheduler_program: str | None = None
    """Another program than kube-scheduler, with its command line."""
    extra_names: tuple[str, ...] = ()
    """Further IP addresses and DNS names that the API server's certificate holds for."""
    token_users: tuple[TokenUser, ...] = ()
    die_with_parent: bool = True
    """Whether the kernel kills everything when this Python process ends. `make cluster` wants it to stay."""


class Endpoints(msgspec.Struct, frozen=True):
    """The ports one control plane has got."""

    api_server: int
    etcd_client: int
    etcd_peer: int


AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""


def server_names(options: ControlPlaneOptions) -> list[str]:
    """Everything the API server is called by its clients."""
    first_of_services = str(next(ipaddress.ip_network(options.service_range).hosts()))
    inside = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    return ["127.0.0.1", "localhost", options.address, first_of_services, *inside, *options.extra_names]


def etcd_command(program: Path, folder: Path, ports: Endpoints, options: ControlPlaneOptions) -> list[str]:
    """Run etcd on loopback alone. It does not wait for the disk: it survives kill -9, not a power cut."""
    client, peer = f"http://127.0.0.1:{ports.etcd_client}", f"http://127.0.0.1:{ports.etcd_peer}"
    return [
        str(program),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        *options.etcd_arguments,
    ]


def api_server_command(program: Path, folder: Path, ports: Endpoints, options: ControlPlaneOptions) -> list[str]:
    """The API server with RBAC as in a real cluster; only the admin's and the components' tokens are
    fixed.
    """
    pki = folder / "pki"
    command = [
        str(program),
        f"--etcd-servers=http://127.0.0.1:{ports.etcd_client}",
        f"--bind-address={options.address}",
        f"--advertise-address={options.address}",
        f"--secure-port={ports.api_server}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--token-auth-file={pki / 'tokens.csv'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'service-account.pub'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        f"--service-cluster-ip-range={options.service_range}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
    ]
    if ipaddress.ip_address(options.address).is_loopback:
        # Kubernetes refuses loopback as the endpoint of a Service, and would say so every ten seconds.
        command.append("--endpoint-reconciler-type=none")
    if options.audit:
        command += [
            f"--audit-policy-file={folder / 'audit-policy.yaml'}",
            f"--audit-log-path={folder / 'logs' / 'audit.jsonl'}",
        ]
    return [*command, *options.api_server_arguments]


def controller_manager_command(program: Path, folder: Path, options: ControlPlaneOptions) -> list[str]:
    """The controller manager, quick, and patient with fake nodes: none of them ever sends a heartbeat."""
    return [
        *_component(program, folder / "kube-controller-manager.kubeconfig"),
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={folder / 'pki' / 'service-account.key'}",
        f"--root-ca-file={folder / 'pki' / 'ca.crt'}",
        "--allocate-node-cidrs=false",
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
        "--node-monitor-period=1s",
        "--node-monitor-grace-period=24h",
        *options.controller_manager_arguments,
    ]


def scheduler_command(program: Path, folder: Path, options: ControlPlaneOptions) -> list[str]:
    """The scheduler. With a configuration file, that file says how it reaches the API server."""
    command = _component(program, folder / "kube-scheduler.kubeconfig")
    if options.scheduler_config is not None:
        command.append(f"--config={folder / 'scheduler.yaml'}")
    else:
        command += ["--leader-elect=false", "--kube-api-qps=1000", "--kube-api-burst=1000"]
    return [*command, *options.scheduler_arguments]


def _component(program: Path, kubeconfig: Path) -> list[str]:
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--secure-port=0",  # nobody asks for its metrics, and a port is one more thing to fight for
    ]
