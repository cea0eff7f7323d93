"""A bucket that pods on the testbed's nodes can reach: a real S3 server at the machine's end of their bridge."""

from __future__ import annotations

import base64
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestra.sync.pace import Patience
from orchestra.sync.remote import Remote
from orchestra.sync.transfer import up
from testbed.cluster import Cluster
from testbed.network import MACHINE_ADDRESS
from testbed.object_store import ObjectStore

SECRET = "bucket-keys"  # noqa: S105 -- a name


class PodBucket:
    """The bucket, as a test sees it."""

    def __init__(self, server: ObjectStore) -> None:
        self.server = server

    def url(self, path: str) -> str:
        """The URL of something in it."""
        return self.server.url(path)

    def remote(self, path: str) -> Remote:
        """A place in it."""
        return Remote(self.url(path), patience=Patience(seconds=60))

    def upload(self, folder: Path, path: str) -> None:
        """A folder, as `aws s3 sync` would."""
        up(folder, self.remote(path))

    def secret(self, cluster: Cluster, namespace: str, name: str = SECRET, **wrong: str) -> None:
        """The credentials as a Secret of a namespace."""
        values = self.server.environment() | wrong
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
        cluster.api.create(f"/api/v1/namespaces/{namespace}/secrets", body)


def moving_containers(image: str, mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a queue's template lends to the containers that move bytes: this machine's Python instead of our image."""
    spec = importlib.util.find_spec("certifi")
    assert spec is not None
    assert spec.origin is not None
    env = [{"name": "SSL_CERT_FILE", "value": str(Path(spec.origin).with_name("cacert.pem"))}]
    return [
        {"name": name, "image": image, "volumeMounts": mounts, "env": env}
        for name in ("orchestra-fetch", "orchestra-send")
    ]


@contextmanager
def pod_bucket() -> Iterator[PodBucket]:
    """The server runs; our own environment points to it too."""
    before = dict(os.environ)
    with ObjectStore(address=MACHINE_ADDRESS) as server:
        os.environ |= server.environment()
        try:
            yield PodBucket(server)
        finally:
            os.environ.clear()
            os.environ.update(before)
