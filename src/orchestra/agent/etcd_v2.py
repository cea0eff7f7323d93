"""What torchrun's `etcd-v2` rendezvous needs of the module `etcd` (python-etcd), which few images have.

Packed as `brought/etcd.py` and put on the launcher's path, and on nobody else's. Names and behaviour are python-etcd's,
as far as torch uses them; one thing is better: a server that does not answer yet is waited for, since its pod may well
start after the workers.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

_READ_TIMEOUT = 60.0
_PATIENCE = 600.0  # for the first answer; after that a silent server is a lost one
_REFUSED_PATIENCE = 15.0
_PAUSE = 0.5


class EtcdException(Exception):
    """Whatever went wrong."""

    def __init__(self, message: str = "", payload: Any = None) -> None:
        super().__init__(message)
        self.payload = payload


class EtcdValueError(EtcdException, ValueError):
    """A wrong value."""


class EtcdCompareFailed(EtcdValueError):
    """Somebody was faster."""


class EtcdKeyError(EtcdException):
    """Something about a key."""


class EtcdKeyNotFound(EtcdKeyError):
    """There is none."""


class EtcdNotFile(EtcdKeyError):
    """It is a folder."""


class EtcdNotDir(EtcdKeyError):
    """It is no folder."""


class EtcdAlreadyExist(EtcdKeyError):
    """There is one already."""


class EtcdDirNotEmpty(EtcdKeyError):
    """The folder is not empty."""


class EtcdEventIndexCleared(EtcdException):
    """The server has forgotten what happened so long ago."""


class EtcdWatcherCleared(EtcdException):
    """A watch was ended by the server."""


class EtcdLeaderElectionInProgress(EtcdException):
    """The servers are busy with each other."""


class EtcdConnectionFailed(EtcdException):
    """Nobody answers."""


class EtcdWatchTimedOut(EtcdConnectionFailed):
    """Nothing happened in time."""


_ERRORS = {
    100: EtcdKeyNotFound,
    101: EtcdCompareFailed,
    102: EtcdNotFile,
    104: EtcdNotDir,
    105: EtcdAlreadyExist,
    108: EtcdDirNotEmpty,
    301: EtcdLeaderElectionInProgress,
    400: EtcdWatcherCleared,
    401: EtcdEventIndexCleared,
}


class EtcdResult:
    """A key with its value, or a folder with its children."""

    def __init__(self, node: dict[str, Any], action: str = "", etcd_index: int = 0) -> None:
        self.action, self.etcd_index = action, etcd_index
        self.key: str = node.get("key", "/")
        self.value: str | None = node.get("value")
        self.dir: bool = node.get("dir", False)
        self.ttl: int | None = node.get("ttl")
        self.expiration: str | None = node.get("expiration")
        self.modifiedIndex: int = node.get("modifiedIndex", 0)
        self.createdIndex: int = node.get("createdIndex", 0)
        self._children: list[dict[str, Any]] = node.get("nodes", [])

    @property
    def children(self) -> Iterator[EtcdResult]:
        """What is below; itself when nothing is."""
        if not self._children:
            yield self
        for node in self._children:
            yield EtcdResult(node, self.action, self.etcd_index)


class Client:
    """One server. Each request has a connection of its own: torch uses a client from several threads."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 2379,
        protocol: str = "http",
        cert: Any = None,
        ca_cert: str | None = None,
        read_timeout: float = _READ_TIMEOUT,
        **_others: Any,
    ) -> None:
        self.host, self.port, self.protocol, self.read_timeout = host, port, protocol, read_timeout
        self._tls: ssl.SSLContext | None = None
        if protocol == "https":
            self._tls = ssl.create_default_context(cafile=ca_cert)
            if cert is not None:
                self._tls.load_cert_chain(*(cert if isinstance(cert, (tuple, list)) else (cert,)))
        self._heard = False

    @property
    def base_uri(self) -> str:
        """Where it is."""
        return f"{self.protocol}://{self.host}:{self.port}"

    @property
    def machines(self) -> list[str]:
        """All servers of the cluster."""
        _, _, body = self._ask("GET", "/v2/machines", {}, self.read_timeout)
        return [one.strip() for one in body.decode().split(",")]

    # ---- writing

    def write(
        self, key: str, value: Any, ttl: int | None = None, dir: bool = False, append: bool = False, **conditions: Any
    ) -> EtcdResult:
        """Set a key, under conditions: prevValue, prevIndex, prevExist; or only its time to live: refresh."""
        fields: dict[str, Any] = {}
        if value is not None:
            fields["value"] = value
        if ttl is not None:
            fields["ttl"] = ttl
        if dir:
            fields["dir"] = True
        fields.update({name: given for name, given in conditions.items() if given is not None})
        return self._result("POST" if append else "PUT", key, fields, self.read_timeout)

    def set(self, key: str, value: Any, ttl: int | None = None) -> EtcdResult:
        """Without a condition."""
        return self.write(key, value, ttl=ttl)

    def test_and_set(self, key: str, value: Any, prev_value: Any, ttl: int | None = None) -> EtcdResult:
        """If it is still what it was."""
        return self.write(key, value, ttl=ttl, prevValue=prev_value)

    def update(self, found: EtcdResult) -> EtcdResult:
        """If nobody changed it since it was read."""
        conditions: dict[str, Any] = {"prevExist": True}
        if not found.dir:
            conditions["prevIndex"] = found.modifiedIndex
        return self.write(found.key, found.value, ttl=found.ttl, dir=found.dir, **conditions)

    def refresh(self, key: str, ttl: int | None = None) -> EtcdResult:
        """Let it live on; nobody who watches it hears of that."""
        return self.write(key, None, ttl=ttl, refresh=True, prevExist=True)

    def delete(self, key: str, recursive: bool | None = None, dir: bool | None = None, **conditions: Any) -> EtcdResult:
        """Remove it, under conditions."""
        fields = {"recursive": recursive, "dir": dir, **conditions}
        kept = {name: given for name, given in fields.items() if given is not None}
        return self._result("DELETE", key, kept, self.read_timeout)

    # ---- reading

    def read(self, key: str, timeout: float | None = None, **fields: Any) -> EtcdResult:
        """What is there; with `wait`, what happens there next."""
        kept = {name: given for name, given in fields.items() if given is not None}
        return self._result("GET", key, kept, self.read_timeout if timeout is None else timeout)

    def get(self, key: str) -> EtcdResult:
        """What is there."""
        return self.read(key)

    def watch(
        self, key: str, index: int | None = None, timeout: float | None = None, recursive: bool | None = None
    ) -> EtcdResult:
        """What happens there next, or happened at `index` or after."""
        return self.read(key, timeout, wait=True, waitIndex=index, recursive=recursive)

    # ---- the wire

    def _result(self, method: str, key: str, fields: dict[str, Any], timeout: float) -> EtcdResult:
        path = "/v2/keys" + quote(key if key.startswith("/") else f"/{key}")
        status, headers, body = self._ask(method, path, fields, timeout)
        try:
            answer = json.loads(body)
        except ValueError:
            if fields.get("wait") and status == 200:  # the server ended a watch that heard nothing
                raise EtcdWatchTimedOut("the watch ended without an event") from None
            raise EtcdException(f"{self.base_uri} answered {status}: {body[:200]!r}") from None
        if "errorCode" in answer:
            kind = _ERRORS.get(answer["errorCode"], EtcdException)
            raise kind(f"{answer.get('message')} : {answer.get('cause')}", answer)
        return EtcdResult(answer["node"], answer.get("action", ""), int(headers.get("x-etcd-index", 0)))

    def _ask(self, method: str, path: str, fields: dict[str, Any], timeout: float) -> tuple[int, Any, bytes]:
        words = {name: str(given).lower() if isinstance(given, bool) else given for name, given in fields.items()}
        query, body, headers = urlencode(words), None, {}
        if method in ("PUT", "POST"):
            body, headers = query, {"Content-Type": "application/x-www-form-urlencoded"}
        elif query:
            path = f"{path}?{query}"
        deadline = time.monotonic() + (_REFUSED_PATIENCE if self._heard else _PATIENCE)
        while True:
            try:
                return self._once(method, path, body, headers, timeout)
            except TimeoutError:
                if fields.get("wait"):
                    raise EtcdWatchTimedOut(f"nothing happened at {path} in {timeout:g} s") from None
                failure: Exception = EtcdConnectionFailed(f"{self.base_uri} did not answer in {timeout:g} s")
            except (ConnectionRefusedError, socket.gaierror) as error:  # nothing was sent: it may be asked again
                failure = EtcdConnectionFailed(f"{self.base_uri}: {error}")
                if time.monotonic() < deadline:
                    time.sleep(_PAUSE)
                    continue
            except (OSError, http.client.HTTPException) as error:
                failure = EtcdConnectionFailed(f"{self.base_uri}: {error}")
            raise failure

    def _once(
        self, method: str, path: str, body: str | None, headers: dict[str, str], timeout: float
    ) -> tuple[int, Any, bytes]:
        limit = timeout or None
        if self._tls is not None:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self.host, self.port, timeout=limit, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=limit)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        self._heard = True
        return answer.status, answer.headers, content
