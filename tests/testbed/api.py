"""A small synchronous client of an API server, for tests.

Standard library only, and deliberately not the project's own client: a test must not trust what it tests.
Each request has a connection of its own, so an `Api` may be used from any thread and survives a restarted
server.
"""

import contextlib
import http.client
import json
import socket
import ssl
import tempfile
import urllib.parse
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from testbed.kubeconfig import Access, read_kubeconfig

Json = dict[str, Any]
PatchKind = Literal["merge", "strategic", "json"]

_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}


class ApiError(Exception):
    """The server refused a request; holds the status code and the server's own Status object, where it sent
    one.
    """

    def __init__(self, method: str, path: str, status: int, body: bytes) -> None:
        self.status = status
        self.body = body
        try:
            answer = json.loads(body)
        except ValueError:
            answer = {}
        self.details: Json = answer if isinstance(answer, dict) else {}
        self.reason = str(self.details.get("reason", ""))
        message = self.details.get("message") or body.decode(errors="replace")[:500]
        super().__init__(f"{method} {path}: {status} {self.reason}: {message}")


class Api:
    """Requests by path, objects as plain dictionaries."""

    def __init__(self, access: Access, *, timeout: float = 30.0) -> None:
        self.access = access
        self.timeout = timeout
        url = urllib.parse.urlsplit(access.server)
        self._host, self._port = url.hostname or "", url.port or 443
        self._tls = _tls_context(access)

    @classmethod
    def from_kubeconfig(cls, path: Path) -> "Api":
        """A client with the rights of a kubeconfig of the testbed."""
        return cls(read_kubeconfig(path))

    def get(self, path: str, **query: str) -> Json:
        """Read one object or a list."""
        return self._json("GET", path, query=query)

    def find(self, path: str) -> Json | None:
        """Read one object, or None when there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def create(self, path: str, body: Json, **query: str) -> Json:
        """POST to a collection."""
        return self._json("POST", path, body, query=query)

    def replace(self, path: str, body: Json, **query: str) -> Json:
        """PUT one object."""
        return self._json("PUT", path, body, query=query)

    def apply(self, path: str, body: Json, *, manager: str = "testbed", force: bool = True) -> Json:
        """Server-side apply of one object."""
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        return self._json("PATCH", path, body, query=query, content_type="application/apply-patch+yaml")

    def patch(self, path: str, body: Any, *, kind: PatchKind = "merge", **query: str) -> Json:
        """Merge, strategic merge or JSON patch of one object; `<path>/status` for its status."""
        return self._json("PATCH", path, body, query=query, content_type=_PATCH_TYPES[kind])

    def delete(self, path: str, *, grace_seconds: int | None = None, propagation: str | None = None) -> Json:
        """Delete one object or a whole collection."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation is not None:
            options["propagationPolicy"] = propagation
        return self._json("DELETE", path, options)

    def watch(
        self, path: str, *, resource_version: str | None = None, timeout: float = 60.0, **query: str
    ) -> Generator[Json, None, None]:
        """The events of a watch, until the server ends it. ERROR events are yielded like any other.

        TimeoutError after `timeout` seconds without a byte, ConnectionError when it breaks, ApiError when
        refused.
        """
        asked = {"watch": "true", **query}
        if resource_version is not None:
            asked["resourceVersion"] = resource_version
        with self._answer("GET", path, None, asked, "", timeout) as response:
            if response.status >= 400:
                raise ApiError("WATCH", path, response.status, response.read())
            for line in _lines(response):
                yield json.loads(line)

    def raw(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> tuple[int, bytes]:
        """One request as it is: status code and body, whatever the status."""
        patience = self.timeout if timeout is None else timeout
        with self._answer(method, path, body, query or {}, content_type, patience) as response:
            return response.status, response.read()

    def ready(self) -> bool:
        """Whether the server answers and calls itself ready."""
        try:
            return self.raw("GET", "/readyz", timeout=5)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _json(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        data = None if body is None else json.dumps(body).encode()
        status, answer = self.raw(method, path, data, query=query, content_type=content_type)
        if status >= 400:
            raise ApiError(method, path, status, answer)
        decoded: Json = json.loads(answer)
        return decoded

    @contextlib.contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        body: bytes | None,
        query: Mapping[str, str],
        content_type: str,
        timeout: float,
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        if self.access.token is not None:
            headers["Authorization"] = f"Bearer {self.access.token}"
        target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
        with contextlib.closing(_Connection(self._host, self._port, self._tls, timeout)) as connection:
            connection.request(method, target, body=body, headers=headers)
            with connection.getresponse() as response:
                yield response


class _Connection(http.client.HTTPConnection):
    """Like HTTPSConnection, but leaks no socket when the server resets it between connection and handshake.

    There `SSLContext.wrap_socket` raises with an open socket that nobody can close any more. So it is wrapped
    first and connected then.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self._tls = tls

    def connect(self) -> None:
        """Connect and shake hands, or leave nothing open."""
        family, kind, protocol, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        wrapped = self._tls.wrap_socket(socket.socket(family, kind, protocol), server_hostname=self.host)
        try:
            wrapped.settimeout(self.timeout)
            wrapped.connect(address)
            wrapped.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            wrapped.close()
            raise
        self.sock = wrapped


@contextlib.contextmanager
def suppress_conflict() -> Iterator[None]:
    """For a create of what somebody else may have created a moment ago."""
    try:
        yield
    except ApiError as error:
        if error.status != 409:
            raise


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Whole lines. Not by `readline`, which takes a broken connection for the end of the answer."""
    rest = b""
    try:
        while data := response.read1(65536):
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
    except http.client.IncompleteRead as error:
        raise ConnectionResetError("the connection broke in the middle of an answer") from error


def _tls_context(access: Access) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=access.certificate_authority.decode())
    if access.client is not None:
        with tempfile.TemporaryDirectory() as folder:  # the ssl module reads client certificates from files alone
            certificate, key = access.client.write(Path(folder), "client")
            context.load_cert_chain(certificate, key)
    return context
