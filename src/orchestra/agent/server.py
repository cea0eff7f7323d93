"""The agent's read-only HTTP: three pages, from a snapshot that the loop replaces."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .pages import Page


class Server:
    """Serves in threads of its own; a slow or silent client costs the loop nothing."""

    def __init__(self, listen: str, pages: dict[str, Callable[[], Page]]) -> None:
        """Binds `host:port`. Raises OSError."""
        host, _, port = listen.rpartition(":")
        self._server = _HttpServer((host.strip("[]"), int(port)), _handler(pages))
        self.address = f"{host or '127.0.0.1'}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True, name="http").start()

    def close(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        """As the base class, without asking DNS for this host's name, which can take seconds in a pod."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "agent", self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


def _handler(pages: dict[str, Callable[[], Page]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5
        server_version = "orchestra-agent"
        sys_version = ""

        def do_GET(self) -> None:
            page: Callable[[], Page] | None = pages.get(self.path.partition("?")[0])
            status, kind, body = page() if page else Page(404, "text/plain", b"not found\n")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet: probes come every few seconds."""

    return Handler
