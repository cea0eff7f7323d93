"""The connection between a shim and its agent: lines of text both ways, and a lifeline.

When either side dies the kernel closes the connection, and the other one knows at once.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

_CHUNK = 256 * 1024
HIGH_WATER = 1024 * 1024
"""Unsent bytes above which a sender should stop taking more in."""


class Channel:
    """Non-blocking, line by line. A log line is `L<stream><time> <text>`, anything else `J<json>`."""

    def __init__(self, connection: socket.socket) -> None:
        """Takes the connection over."""
        connection.setblocking(False)
        self._socket = connection
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.closed = False

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that wait for the other side."""
        return len(self._outgoing)

    def send_line(self, stream: str, now: float, text: str) -> None:
        """A line of the rank's output; `stream` is `o` or `e`."""
        self._outgoing += f"L{stream}{now:.3f} {text}\n".encode("utf-8", "replace")

    def send(self, message: dict[str, Any]) -> None:
        """Anything else."""
        self._outgoing += b"J" + json.dumps(message).encode() + b"\n"

    def flush(self, seconds: float | None = None) -> None:
        """Sends what can be sent now; with `seconds`, waits that long for the other side to take it."""
        try:
            if seconds is not None:
                self._socket.settimeout(seconds)
                self._socket.sendall(self._outgoing)
                self._outgoing.clear()
            while self._outgoing:
                sent = self._socket.send(self._outgoing[:_CHUNK])
                del self._outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:  # a timeout is one, too
            self.closed = True
            self._outgoing.clear()
        finally:
            if seconds is not None:
                self._socket.setblocking(False)

    def receive(self) -> list[bytes]:
        """The complete messages that have arrived. Sets `closed` when the other side is gone."""
        while True:
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            self._incoming += data
            if len(self._incoming) > HIGH_WATER:  # others wait for their turn
                break
        complete, separator, rest = bytes(self._incoming).rpartition(b"\n")
        if not separator:
            return []
        self._incoming = bytearray(rest)
        return complete.split(b"\n")

    def close(self) -> None:
        """Lets go of the connection."""
        self.closed = True
        self._socket.close()


def parse_line(message: bytes) -> tuple[str, float, str]:
    """Stream, time and text of an `L` message."""
    head, _, text = message[1:].partition(b" ")
    return chr(head[0]), float(head[1:]), text.decode("utf-8", "replace")


def listen(name: str) -> socket.socket:
    """An abstract address: no file, no limit on the length of a folder's path, nothing left behind."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")
    listener.listen(512)
    listener.setblocking(False)
    return listener


def connect(name: str, seconds: float = 10.0) -> Channel:
    """Connects a shim to its agent."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(seconds)
    connection.connect(f"\0{name}")
    return Channel(connection)


def accept(listener: socket.socket) -> Channel | None:
    """The next shim. Others on this machine can see the address, so only this user's processes are let in."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", credentials)[1] != os.getuid():
        connection.close()
        return None
    return Channel(connection)
