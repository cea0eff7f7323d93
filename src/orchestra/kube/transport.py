"""Bytes to the API server and back: sessions, TLS, credentials, limits, retries.

Two sessions: one for requests, each bounded in time, and one for watches and logs, which have no end but must not
be silent for too long.
"""

import asyncio
import contextlib
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

import aiohttp
import msgspec
from yarl import URL

from orchestra.kube.backoff import Backoff
from orchestra.kube.config import Access, ConfigError
from orchestra.kube.errors import ApiError, NotLeading, Unreachable, refusal_of
from orchestra.kube.identity import Credential, Identity
from orchestra.kube.limits import Gate, Limits
from orchestra.kube.metrics import Metrics
from orchestra.kube.sockets import Sockets

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

REQUEST_SECONDS = 30.0
SILENCE_SECONDS = 150.0
"""A quiet watch gets a bookmark each minute: a connection silent for longer than two is dead, though TCP may not
know for a quarter of an hour."""

_RETRIES = Backoff(first=0.1, longest=5.0)
_ATTEMPTS = 5
_CLOSING_SECONDS = 2.0
_RETRIED = (429, 502, 503, 504)
_log = logging.getLogger(__name__)


class Answer(msgspec.Struct, frozen=True):
    """A whole answer that is not a refusal."""

    status: int
    body: bytes
    warnings: tuple[str, ...] = ()


class Transport:
    """Everything between a path and an answer. Close it, or use it as a context manager."""

    def __init__(
        self,
        access: Access,
        *,
        limits: Limits | None = None,
        user_agent: str = "orchestra-kube",
        metrics: Metrics | None = None,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        self.access = access
        self.write_guard: Callable[[], bool] | None = None
        """Asked before each request that changes something; False refuses it with NotLeading."""
        self._identity = Identity(access)
        self._gate = Gate(limits or Limits())
        self._user_agent = user_agent
        self._request_seconds = request_seconds
        self._timeout = aiohttp.ClientTimeout(total=request_seconds)
        self._sessions: tuple[aiohttp.ClientSession, aiohttp.ClientSession] | None = None
        self._retired: list[aiohttp.ClientSession] = []
        self._credential: Credential | None = None
        self._sockets = Sockets()
        host = URL(access.server).authority
        requests = (metrics or Metrics()).counter(
            "rest_client_requests_total", "Number of HTTP requests, by status code, method and host.",
            "code", "method", "host",
        )  # fmt: skip
        self._requests, self._host = requests, host

    async def request(
        self,
        method: Method,
        target: str,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
        idempotent: bool = True,
        urgent: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request, bounded in time with all its retries. ApiError when refused, Unreachable when no answer came.

        Only what is idempotent is retried; but 401 and 429 say that nothing was done, so they are for every verb.
        An urgent one (a lease's) waits in no line and passes the write guard.
        """
        left = self._request_seconds
        attempt, rejected = 0, None
        clock = asyncio.get_running_loop().time
        while True:
            attempt += 1
            failure: ApiError | Unreachable
            async with contextlib.nullcontext() if urgent else self._gate:
                began = clock()
                try:
                    credential, session, _ = await self._open_sessions(rejected)
                    began = clock()  # a credential plugin may take its time
                    # Asked last: who waited in line may have been deposed meanwhile.
                    if not urgent and method != "GET" and self.write_guard is not None and not self.write_guard():
                        raise NotLeading(f"{method} {target}")
                    return await self._once(session, credential, method, target, body, content_type, left, headers)
                except (ApiError, Unreachable) as error:
                    failure = error
                left -= clock() - began
            if isinstance(failure, ApiError) and failure.code == 401 and rejected is None:
                rejected = credential
                continue
            delay = _delay(failure, attempt, idempotent)
            if delay is None or delay >= left:
                raise failure
            left -= delay
            await asyncio.sleep(delay)

    def _count(self, code: int | str, method: Method) -> None:
        self._requests.labels(str(code), method, self._host).inc()

    async def _once(
        self,
        session: aiohttp.ClientSession,
        credential: Credential,
        method: Method,
        target: str,
        body: bytes | None,
        content_type: str,
        left: float,
        more: Mapping[str, str] | None = None,
    ) -> Answer:
        headers = {**_headers(credential), **(more or {})}
        if body is not None:
            headers["Content-Type"] = content_type
        timeout = self._timeout if left == self._request_seconds else aiohttp.ClientTimeout(total=max(left, 0.05))
        try:
            async with session.request(
                method, self._url(target), data=body, headers=headers, server_hostname=self.access.server_name,
                allow_redirects=False, timeout=timeout,
            ) as response:  # fmt: skip
                content = await response.read()
        except aiohttp.ClientConnectorCertificateError as error:
            self._retire_sessions()  # the authority's file may have been replaced: read it again next time
            raise Unreachable(f"{method} {target}: {error}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._count("<error>", method)
            raise Unreachable(f"{method} {target}: {type(error).__name__}: {error}") from error
        self._count(response.status, method)
        if response.status >= 300:
            retry_after = response.headers.get("Retry-After")
            raise ApiError(f"{method} {target}", refusal_of(response.status, content, retry_after))
        warnings = response.headers.getall("Warning", ()) if "Warning" in response.headers else ()
        return Answer(response.status, content, tuple(warnings))

    async def stream(self, target: str, *, silence: float | None = SILENCE_SECONDS) -> AsyncIterator[bytes]:
        """The bytes of an answer without an end, as they come. Unreachable when it breaks or is silent for too long.

        Close it (`contextlib.aclosing`): the connection is open until then.
        """
        rejected: Credential | None = None
        for _ in range(2):
            credential, _, session = await self._open_sessions(rejected)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._request_seconds, sock_read=silence)
            try:
                async with session.get(
                    self._url(target), headers=_headers(credential), timeout=timeout,
                    server_hostname=self.access.server_name, allow_redirects=False,
                ) as response:  # fmt: skip
                    self._count(response.status, "GET")
                    if response.status == 401 and rejected is None:
                        rejected = credential
                        continue
                    if response.status >= 300:
                        refusal = refusal_of(
                            response.status, await response.read(), response.headers.get("Retry-After")
                        )
                        raise ApiError(f"GET {target}", refusal)
                    # Not by lines: aiohttp's readline gives up on lines over its buffer, and objects are larger.
                    with _aborted_at_the_end(response):
                        async for data in response.content.iter_any():
                            yield data
                    return
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise Unreachable(f"GET {target}: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close all connections."""
        self._retire_sessions()
        for session in self._retired:
            await session.close()
        self._retired.clear()
        await self._sockets.wait_closed(_CLOSING_SECONDS)

    async def __aenter__(self) -> "Transport":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _url(self, target: str) -> URL:
        return URL(self.access.server + target, encoded=True)

    async def _open_sessions(
        self, rejected: Credential | None
    ) -> tuple[Credential, aiohttp.ClientSession, aiohttp.ClientSession]:
        """What to prove who we are with, and the sessions for requests and for streams."""
        credential = self._identity.cached() if rejected is None else None
        try:
            if credential is None:
                credential = await self._identity.credential(rejected)
            old, self._credential = self._credential, credential
            if old is not None and (old.certificate, old.key) != (credential.certificate, credential.key):
                self._retire_sessions()
            if self._sessions is None:
                self._sessions = (self._session(credential), self._session(credential))
        except (ConfigError, ssl.SSLError) as error:
            raise Unreachable(f"no credentials for {self.access.server}: {error}") from error
        sessions = self._sessions
        while len(self._retired) > 2:  # only the last generation may still have watches of use
            await self._retired.pop(0).close()
        return credential, *sessions

    def _session(self, credential: Credential) -> aiohttp.ClientSession:
        tls = tls_context(self.access, credential) if self.access.server.startswith("https") else False
        return aiohttp.ClientSession(
            # How many run at once is the gate's to say: in aiohttp's line a lease would wait behind a flood of pods.
            connector=aiohttp.TCPConnector(ssl=tls, limit=0, keepalive_timeout=75.0, socket_factory=self._sockets.make),
            headers={"Accept": "application/json", "User-Agent": self._user_agent},
            # Compressing costs the server more than it saves on a cluster's own network.
            skip_auto_headers=("Accept-Encoding",),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def _retire_sessions(self) -> None:
        """Use them for nothing new; open watches go on until they end, or until `close`."""
        if self._sessions is not None:
            self._retired.extend(self._sessions)
            self._sessions = None


def _headers(credential: Credential) -> dict[str, str]:
    return {} if credential.token is None else {"Authorization": f"Bearer {credential.token}"}


@contextlib.contextmanager
def _aborted_at_the_end(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Leave a stream at once: the polite end of TLS waits for a server that has more to say."""
    try:
        yield
    finally:
        transport = response.connection.transport if response.connection is not None else None
        if transport is not None:
            transport.abort()


def _delay(failure: ApiError | Unreachable, attempt: int, idempotent: bool) -> float | None:
    """Seconds until the next attempt; None when there is to be none."""
    if attempt >= _ATTEMPTS:
        return None
    delay = _RETRIES.delay(attempt)
    if isinstance(failure, Unreachable):
        return delay if idempotent else None
    if failure.code == 429 or (idempotent and (failure.code in _RETRIED or failure.retry_after is not None)):
        return max(delay, failure.retry_after or 0.0)
    return None


def tls_context(access: Access, credential: Credential) -> ssl.SSLContext:
    """TLS as the kubeconfig wants it."""
    authority = access.authority.read().decode() if access.authority is not None else None
    context = ssl.create_default_context(cadata=authority)
    # Python 3.13 demands extensions that many clusters' own authorities lack; Go does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credential.certificate is not None:
        with tempfile.TemporaryDirectory() as folder:  # the ssl module reads these from files alone
            pair = Path(folder) / "pair.pem"
            pair.touch(mode=0o600)
            pair.write_bytes(credential.certificate + b"\n" + (credential.key or b""))
            context.load_cert_chain(pair)
    return context


def with_query(path: str, query: Mapping[str, str]) -> str:
    """A path with its query, encoded once and for all."""
    return f"{path}?{urlencode(query)}" if query else path
