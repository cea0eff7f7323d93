"""Sockets that are known until they are closed.

Cancelling a request over TLS ends the connection politely, in the background, and closing a session does not wait for
that. Whoever closes a client wants nothing left behind.
"""

import asyncio
import socket
import weakref

AddressInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]]


class Sockets:
    """Makes sockets for a connector and can wait for their end."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def make(self, address: AddressInfo) -> socket.socket:
        """A socket for one of a host's addresses."""
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._made.add(made)
        return made

    async def wait_closed(self, patience: float) -> bool:
        """Until all are closed; False when that takes too long."""
        deadline = asyncio.get_running_loop().time() + patience
        while any(one.fileno() >= 0 for one in self._made):
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.005)  # there is no event for it: the transports are not ours
        return True
