"""A proxy before an S3 server that answers some requests itself, with 503 SlowDown: a store that has too much to do."""

from __future__ import annotations

import http.client
import http.server
import random
import threading
from types import TracebackType
from typing import Self

_BODY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_HOP = {"connection", "transfer-encoding", "keep-alive"}


class RefusingProxy:
    """A context manager. `refusals` counts what it refused, `served` what it passed on."""

    def __init__(self, target: tuple[str, int], share: float, chance: random.Random) -> None:
        self.target, self._share, self._chance = target, share, chance
        self.refusals = self.served = 0
        self._lock = threading.Lock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def refuses(self) -> bool:
        """Whether the next request is refused."""
        with self._lock:
            refuse = self._chance.random() < self._share
            self.refusals += refuse
            self.served += not refuse
            return refuse


def _handler(proxy: RefusingProxy) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if proxy.refuses():
                self._answer(503, {"Content-Type": "application/xml"}, _BODY)
                return
            connection = http.client.HTTPConnection(*proxy.target, timeout=60)
            try:
                # The signature covers the name by which the client called: it goes on as it came.
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                self._answer(answer.status, dict(answer.getheaders()), answer.read())
            finally:
                connection.close()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815 -- the names it looks for

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response_only(status)
            length = str(len(body))
            for name, value in headers.items():
                if name.lower() == "content-length":
                    length = value if self.command == "HEAD" else length
                elif name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
