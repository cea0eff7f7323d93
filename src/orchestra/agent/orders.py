"""The socket by which the sidecar of a pod gives the agent orders, and hears its answers: one JSON object a line.

In a pod the code is brought by another container, which shares nothing with this one but a folder. Whoever reaches the
folder may give orders; only this pod's containers do. An order that is half-way when its giver is gone is taken back.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .files import remove

_LONGEST = 1 << 20


class OrderSocket:
    """Listens from the beginning; its descriptors are served by the agent's own loop."""

    def __init__(
        self, path: Path, selector: selectors.BaseSelector, take: Callable[[dict[str, Any]], None],
        gone: Callable[[], None],
    ) -> None:  # fmt: skip
        """`take` hears each order, `gone` that somebody who gave one has left."""
        self._selector, self._take, self._gone = selector, take, gone
        self._rest: dict[socket.socket, bytes] = {}
        remove(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        os.chmod(path, 0o666)  # noqa: PTH101, S103 -- images may run as different users; the folder is this pod's own
        self._listener.listen(4)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, lambda _: self._accept())

    def tell(self, answer: dict[str, Any]) -> None:
        """To everybody who listens."""
        line = json.dumps(answer).encode() + b"\n"
        for connection in list(self._rest):
            try:
                connection.sendall(line)  # small, and read at once: it does not block
            except OSError:
                self._leave(connection)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._rest[connection] = b""
            self._selector.register(connection, selectors.EVENT_READ, self._hear)

    def _hear(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, rest = (self._rest[connection] + data).split(b"\n")
        self._rest[connection] = rest
        for line in lines:
            with contextlib.suppress(ValueError):
                order = json.loads(line.decode("utf-8"))
                if isinstance(order, dict):
                    self._take(order)
        if not data or len(rest) > _LONGEST:
            self._leave(connection)

    def _leave(self, connection: socket.socket) -> None:
        self._rest.pop(connection, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        connection.close()
        self._gone()
