"""Where the API server is and who we are there: from kubeconfig files, or from inside a pod.

Files are read here once, but for those that change while we run (tokens, client certificates): `identity.py`
reads these again.
"""

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ConfigError(Exception):
    """A kubeconfig that cannot be used; the message says which, why, and what to do."""


class Pem(msgspec.Struct, frozen=True):
    """A PEM text: given, or in a file that may be replaced while we run."""

    data: bytes | None = None
    file: Path | None = None

    def read(self) -> bytes:
        """The text as it is now. ConfigError when the file cannot be read."""
        if self.data is not None:
            return self.data
        if self.file is None:
            raise ConfigError("neither data nor a file is given")
        try:
            return self.file.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.file}: {error.strerror}") from error


class ExecPlugin(msgspec.Struct, frozen=True, rename="camel"):
    """A program that prints credentials (`client.authentication.k8s.io`)."""

    command: str
    api_version: str
    args: list[str] | None = None
    env: list[dict[str, str]] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """An API server, and one way to prove who we are. At most one of token, token file, certificate and plugin
    is used for the token; a client certificate may come on top.
    """

    server: str
    namespace: str = "default"
    authority: Pem | None = None
    verify: bool = True
    server_name: str | None = None
    """The name in the server's certificate, where it is not the one in the URL."""
    token: str | None = None
    token_file: Path | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    plugin: ExecPlugin | None = None


class _Named(msgspec.Struct):
    name: str


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str = ""


class _User(msgspec.Struct, rename="kebab"):
    token: str | None = None
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: ExecPlugin | None = None
    auth_provider: Any = None
    username: str = ""
    act_as: str = msgspec.field(default="", name="as")


class _Context(msgspec.Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = "default"


class _NamedCluster(_Named):
    cluster: _Cluster
    folder: Path = Path()


class _NamedUser(_Named):
    user: _User | None = None
    folder: Path = Path()


class _NamedContext(_Named):
    context: _Context


class _File(msgspec.Struct, rename="kebab"):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str = ""


N = TypeVar("N", bound=_Named)


def kubeconfig_paths(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The files kubectl would read: those of KUBECONFIG, or else `~/.kube/config`."""
    named = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    return named or [Path("~/.kube/config").expanduser()]


def find_access(*, context: str | None = None, environment: Mapping[str, str] = os.environ) -> Access:
    """As kubectl looks for it: KUBECONFIG, then the pod we may be in, then `~/.kube/config`."""
    if not environment.get("KUBECONFIG") and environment.get("KUBERNETES_SERVICE_HOST") and context is None:
        return in_cluster(environment)
    return load_kubeconfig(kubeconfig_paths(environment), context=context)


def context_name(environment: Mapping[str, str] = os.environ) -> str:
    """The current context's name; empty where there is none."""
    files = [_read(path) for path in kubeconfig_paths(environment) if path.exists()]
    return next((file.current_context for file in files if file.current_context), "")


def in_cluster(environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT_FOLDER) -> Access:
    """What a pod knows about its cluster."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod of a cluster")
    if not (folder / "token").exists():
        raise ConfigError(f"{folder / 'token'} is missing: does the pod have automountServiceAccountToken: false?")
    try:
        namespace = (folder / "namespace").read_text().strip()
    except OSError:
        namespace = ""
    address = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{address}:{port}",
        namespace=namespace or "default",
        authority=Pem(file=folder / "ca.crt"),
        token_file=folder / "token",
    )


def load_kubeconfig(paths: Path | Sequence[Path], *, context: str | None = None) -> Access:
    """One context of one or several kubeconfig files, merged as kubectl does: the first to name a thing wins."""
    looked = [paths] if isinstance(paths, Path) else paths
    files = [_read(path) for path in looked if path.exists()]
    if not files:
        places = " or ".join(map(str, looked))
        raise ConfigError(f"there is no kubeconfig at {places}; set KUBECONFIG, or run this in a cluster")
    wanted = context or next((file.current_context for file in files if file.current_context), "")
    if not wanted:
        raise ConfigError("the kubeconfig has no current-context: choose one with --context")
    chosen = _by_name("context", wanted, [one for file in files for one in file.contexts or []]).context
    cluster = _by_name("cluster", chosen.cluster, [one for file in files for one in file.clusters or []])
    user = _NamedUser(chosen.user, _User())
    if chosen.user:
        user = _by_name("user", chosen.user, [one for file in files for one in file.users or []])
    return _access(cluster, user, chosen.namespace)


def _read(path: Path) -> _File:
    try:
        file = msgspec.convert(yaml.safe_load(path.read_bytes()) or {}, _File)
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} is not a kubeconfig: {error}") from error
    for one in (*(file.clusters or ()), *(file.users or ())):
        one.folder = path.parent  # relative paths are relative to the file they stand in
    return file


def _by_name(what: str, name: str, among: Sequence[N]) -> N:
    for one in among:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in among) or "none"
    raise ConfigError(f"the kubeconfig has no {what} named {name!r} (there is: {known})")


def _access(named_cluster: _NamedCluster, named_user: _NamedUser, namespace: str) -> Access:
    cluster, user = named_cluster.cluster, named_user.user or _User()
    refused = {
        "proxy-url": cluster.proxy_url,
        "auth-provider (removed from Kubernetes in 1.26; use an exec plugin)": user.auth_provider,
        "username and password (removed from Kubernetes in 1.19)": user.username,
        "as (impersonation)": user.act_as,
    }
    for feature, used in refused.items():
        if used:
            raise ConfigError(f"the kubeconfig uses {feature}, which is not supported here")
    if not cluster.server:
        raise ConfigError(f"cluster {named_cluster.name!r} of the kubeconfig has no server")
    here = named_user.folder
    return Access(
        server=cluster.server.rstrip("/"),
        namespace=namespace or "default",
        authority=_pem(named_cluster.folder, cluster.certificate_authority, cluster.certificate_authority_data),
        verify=not cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        token=user.token,
        token_file=here / user.token_file if user.token_file else None,
        certificate=_pem(here, user.client_certificate, user.client_certificate_data),
        key=_pem(here, user.client_key, user.client_key_data),
        plugin=user.exec and msgspec.structs.replace(user.exec, command=_command(here, user.exec.command)),
    )


def _pem(folder: Path, file: str, data: str) -> Pem | None:
    if data:
        try:
            return Pem(data=base64.b64decode(data, validate=True))
        except binascii.Error as error:
            raise ConfigError(f"a -data field of the kubeconfig is not base64: {error}") from error
    return Pem(file=folder / file) if file else None


def _command(folder: Path, command: str) -> str:
    """A bare name is looked up on the PATH, anything with a slash from the kubeconfig's folder."""
    return str(folder / command) if os.sep in command else command
