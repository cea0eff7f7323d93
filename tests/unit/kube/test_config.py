"""Kubeconfigs as people have them, and messages they can act on."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestra.kube.config import ConfigError, find_access, in_cluster, load_kubeconfig


def a_kubeconfig(folder: Path, name: str = "config", *, user: Any = None, cluster: Any = None, **more: Any) -> Path:
    config: dict[str, Any] = {
        "clusters": [{"name": "c", "cluster": {"server": "https://a:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "current-context": "x",
        **more,
    }
    path = folder / name
    path.write_text(yaml.safe_dump(config))
    return path


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_context_names_server_user_and_namespace(tmp_path: Path) -> None:
    access = load_kubeconfig(a_kubeconfig(tmp_path, user={"token": "t"}, cluster={"tls-server-name": "n"}))
    assert (access.server, access.namespace, access.token) == ("https://a:6443", "team", "t")
    assert access.server_name == "n"
    assert access.verify


def test_certificates_are_inline_or_in_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "me.crt").write_text("certificate")
    user = {"client-certificate": "me.crt", "client-key-data": encoded("key")}
    cluster = {"certificate-authority-data": encoded("authority")}
    access = load_kubeconfig(a_kubeconfig(tmp_path, user=user, cluster=cluster))
    assert access.certificate is not None
    assert access.certificate.read() == b"certificate"
    assert access.key is not None
    assert access.key.read() == b"key"
    assert access.authority is not None
    assert access.authority.read() == b"authority"


def test_tokens_in_files_plugins_and_no_verification(tmp_path: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./get-token", "args": ["-x"], "env": None}
    cluster = {"insecure-skip-tls-verify": True}
    access = load_kubeconfig(a_kubeconfig(tmp_path, user={"exec": plugin}, cluster=cluster))
    assert access.plugin is not None
    assert access.plugin.command == str(tmp_path / "get-token")
    assert access.plugin.args == ["-x"]
    assert not access.verify
    access = load_kubeconfig(a_kubeconfig(tmp_path, user={"tokenFile": "token"}))
    assert access.token_file == tmp_path / "token"


def test_several_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    first = a_kubeconfig(tmp_path, "first", clusters=[], users=[], **{"current-context": ""})
    second = a_kubeconfig(tmp_path, "second", user={"token": "two"})
    expected = load_kubeconfig(second)
    assert load_kubeconfig([tmp_path / "absent", first, second]) == expected
    environment = {"KUBECONFIG": f"{first}:{second}", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert find_access(environment=environment) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"current-context": "nope"}, "the kubeconfig has no context named 'nope' (there is: x)"),
        ({"current-context": ""}, "the kubeconfig has no current-context: choose one with --context"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "auth-provider (removed from Kubernetes in 1.26; use an exec plugin)"),
        ({"user": {"as": "root"}}, "impersonation"),
        ({"cluster": {"proxy-url": "http://p"}}, "proxy-url"),
        ({"cluster": {"server": ""}}, "cluster 'c' of the kubeconfig has no server"),
        ({"user": {"client-key-data": "%%"}}, "not base64"),
        ({"users": "many"}, "is not a kubeconfig: Expected `array | null`, got `str` - at `$.users`"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_kubeconfig(a_kubeconfig(tmp_path, **changes))
    assert message in str(raised.value)


def test_a_pod_knows_its_cluster(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("system\n")
    access = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path)
    assert access.server == "https://[fd00::1]:443"
    assert access.namespace == "system"
    assert access.token_file == tmp_path / "token"
    with pytest.raises(ConfigError, match="does not run in a pod"):
        in_cluster({}, tmp_path)
