"""Reading and changing etcd behind the API server's back, by etcd's JSON gateway: no etcdctl is needed."""

import base64
import json
import urllib.error
import urllib.request
from typing import Any

# Loopback is never reached through the proxy of the environment.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class EtcdError(Exception):
    """etcd refused a request or did not answer."""


class EtcdClient:
    """Keys as Kubernetes writes them, such as `/registry/pods/default/a`."""

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        self.url = url
        self._timeout = timeout

    def healthy(self) -> bool:
        """Whether etcd answers and has a leader."""
        try:
            with _direct.open(f"{self.url}/health", timeout=self._timeout) as answer:
                return bool(json.load(answer).get("health") == "true")
        except (OSError, ValueError):
            return False

    def revision(self) -> int:
        """The newest revision: what Kubernetes shows as a list's resourceVersion."""
        answer = self._call("kv/range", {"key": _encoded("\0"), "limit": "1"})
        return int(answer["header"]["revision"])

    def keys(self, prefix: str) -> list[str]:
        """All keys that start with `prefix`."""
        request = {"key": _encoded(prefix), "range_end": _after(prefix), "keys_only": True}
        return [base64.b64decode(pair["key"]).decode() for pair in self._call("kv/range", request).get("kvs", [])]

    def delete(self, key: str, *, prefix: bool = False) -> int:
        """Delete one key, or all under a prefix; returns how many there were."""
        request = {"key": _encoded(key)} | ({"range_end": _after(key)} if prefix else {})
        return int(self._call("kv/deleterange", request).get("deleted", 0))

    def compact(self, revision: int | None = None) -> int:
        """Forget all history before a revision (the newest one when not given), which is returned."""
        revision = self.revision() if revision is None else revision
        self._call("kv/compaction", {"revision": str(revision), "physical": True})
        return revision

    def _call(self, method: str, request: dict[str, Any]) -> dict[str, Any]:
        url = f"{self.url}/v3/{method}"
        post = urllib.request.Request(url, data=json.dumps(request).encode(), method="POST")  # noqa: S310
        try:
            with _direct.open(post, timeout=self._timeout) as answer:
                decoded: dict[str, Any] = json.load(answer)
                return decoded
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            raise EtcdError(f"{method} at {self.url}: {error.code} {said}") from None
        except OSError as error:
            raise EtcdError(f"{method}: etcd at {self.url} does not answer: {error}") from error


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _after(prefix: str) -> str:
    """The first key behind all that start with `prefix`, as etcd wants the end of a range."""
    data = bytearray(prefix.encode())
    data[-1] += 1  # our prefixes are ASCII: no byte is 0xff
    return base64.b64encode(bytes(data)).decode()
