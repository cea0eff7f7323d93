"""Kubeconfig files: self-contained, so that one can be copied anywhere, also into a pod."""

import base64
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from testbed.pki import KeyPair, write_private

_NAME = "orchestra-testbed"


@dataclass(frozen=True)
class Access:
    """Where an API server is and how to talk to it: with a token, a client certificate, or neither."""

    server: str
    certificate_authority: bytes
    token: str | None = None
    client: KeyPair | None = None
    namespace: str = "default"

    def through(self, server: str) -> "Access":
        """The same rights by another address, such as a proxy's."""
        return replace(self, server=server)

    def write(self, path: Path) -> Path:
        """Write it as a kubeconfig that only its owner can read."""
        user: dict[str, Any] = {}
        if self.token is not None:
            user["token"] = self.token
        if self.client is not None:
            user["client-certificate-data"] = _encoded(self.client.certificate)
            user["client-key-data"] = _encoded(self.client.key)
        cluster = {
            "server": self.server,
            "certificate-authority-data": _encoded(self.certificate_authority),
        }
        context = {"cluster": _NAME, "user": _NAME, "namespace": self.namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": _NAME, "cluster": cluster}],
            "users": [{"name": _NAME, "user": user}],
            "contexts": [{"name": _NAME, "context": context}],
            "current-context": _NAME,
        }
        return write_private(path, yaml.safe_dump(config, sort_keys=False).encode())


def read_kubeconfig(path: Path) -> Access:
    """The access that `Access.write` wrote. Not a reader of everybody's kubeconfigs."""
    config = yaml.safe_load(path.read_text())
    cluster = config["clusters"][0]["cluster"]
    user = config["users"][0]["user"]
    client = None
    if "client-certificate-data" in user:
        client = KeyPair(_decoded(user["client-certificate-data"]), _decoded(user["client-key-data"]))
    return Access(
        server=cluster["server"],
        certificate_authority=_decoded(cluster["certificate-authority-data"]),
        token=user.get("token"),
        client=client,
        namespace=config["contexts"][0]["context"].get("namespace", "default"),
    )


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text)
