"""As much of the Hugging Face hub as a download asks for. A fake, for there is no real one within reach of the tests."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

_COMMIT = "1" * 40


class FakeHub:
    """One repository, `owner/model` or the data set `owner/name`; counts what is asked, and cuts what it is told to."""

    def __init__(self, files: dict[str, bytes], *, kind: str = "models", name: str = "owner/model") -> None:
        self.files, self.requests = files, 0
        self.kind, self.name = kind, name
        self.sent: dict[str, int] = {}
        """Bytes of each file, over all answers."""
        self.cut_after: int | None = None
        """Each answer ends without a word after so many bytes."""
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            with hub.lock:
                hub.requests += 1
            path = self.path.partition("?")[0]
            name = path.rpartition("/resolve/")[2].partition("/")[2]
            if path.startswith(f"/api/{hub.kind}/{hub.name}"):
                siblings = [{"rfilename": one, "size": len(data)} for one, data in hub.files.items()]
                tree = [
                    {"type": "file", "path": one, "size": len(data), "oid": "0" * 40} for one, data in hub.files.items()
                ]
                info = {"id": hub.name, "modelId": hub.name, "sha": _COMMIT, "siblings": siblings,
                        "private": False, "tags": [], "downloads": 0, "likes": 0}  # fmt: skip
                self._send(200, json.dumps(tree if "/tree/" in path else info).encode(), {}, body)
            elif name in hub.files:
                data = hub.files[name]
                headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": _COMMIT}
                asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                if asked:
                    first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
                    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
                    data = data[first : last + 1]
                self._send(206 if asked else 200, data, headers, body, name)
            else:
                self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"}, body)

        def _send(self, code: int, data: bytes, headers: dict[str, str], body: bool, file: str = "") -> None:
            self.send_response(code)
            for name, value in {
                "Content-Length": str(len(data)),
                "Content-Type": "application/json",
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                cut = hub.cut_after is not None and file and len(data) > hub.cut_after
                data = data[: hub.cut_after] if cut else data
                with hub.lock:
                    hub.sent[file] = hub.sent.get(file, 0) + len(data)
                self.wfile.write(data)
                if cut:
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
