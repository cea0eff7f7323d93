"""A TCP proxy that can freeze, cut and refuse: the faults of a network, on loopback.

It never looks into the bytes, so TLS passes through it end to end. One thread serves all connections, and an
order such as `freeze()` is carried out by that thread: when the call returns, not one more byte passes.
"""

import contextlib
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from testbed.ports import free_port

_CHUNK = 65536
_HIGH_WATER = 1 << 20
"""Bytes held for a slow reader before the other side is no longer read."""


class _Pipe:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.held = bytearray()
        self.ended = False  # the source sent its last byte
        self.passed_on_end = False


class _Connection:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.pipes = (_Pipe(client, server), _Pipe(server, client))

    def sockets(self) -> tuple[socket.socket, socket.socket]:
        return self.pipes[0].source, self.pipes[1].source


class TcpProxy:
    """Listens on loopback and passes everything on to one address. A context manager; `close()` ends it."""

    def __init__(self, target: tuple[str, int], *, address: str = "127.0.0.1") -> None:
        self.target = target
        self.address = address
        self.accepted = 0
        """Connections taken so far: a client that dials in a hot loop shows here."""
        self._listener = self._listen(0)
        self.port = self._listener.getsockname()[1]
        self._connections: set[_Connection] = set()
        self._frozen = False
        self._cut = False
        self._refusing = False
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._orders: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name=f"tcp-proxy-{self.port}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def open_connections(self) -> int:
        """Connections that pass through the proxy now."""
        return len(self._connections)

    def freeze(self) -> None:
        """Let nothing pass, and tell nobody: what a machine that vanished looks like.

        Open connections stay open and silent, new ones are established and stay silent too.
        """
        self._order(lambda: setattr(self, "_frozen", True))

    def thaw(self) -> None:
        """Let pass again, beginning with what was sent meanwhile."""
        self._order(lambda: setattr(self, "_frozen", False))

    def cut(self) -> None:
        """Reset every open connection, and each new one as it comes, until `heal()`."""

        def cut() -> None:
            self._cut = True
            self._reset_all()

        self._order(cut)

    def reset_connections(self) -> None:
        """Reset every open connection once; new ones are served."""
        self._order(self._reset_all)

    def refuse(self) -> None:
        """Stop listening: new connections are refused until `heal()`; open ones go on."""

        def refuse() -> None:
            self._refusing = True
            self._listener.close()

        self._order(refuse)

    def heal(self) -> None:
        """End every fault."""

        def heal() -> None:
            self._frozen = self._cut = False
            if self._refusing:
                self._listener = self._listen(self.port)
                self._refusing = False

        self._order(heal)

    def close(self) -> None:
        """End all connections and the proxy's thread. May be called twice."""
        if not self._closed:
            self._order(lambda: setattr(self, "_closed", True))
            self._thread.join()
            self._wake_writer.close()

    # Everything below runs in the proxy's own thread, except `_order` and the first `_listen`.

    def _order(self, action: Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError("the proxy is closed")
        done: Future[None] = Future()
        self._orders.append((action, done))
        self._wake_writer.send(b"x")
        done.result(timeout=30)

    def _listen(self, port: int) -> socket.socket:
        for _ in range(20):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((self.address, port or free_port(self.address)))
                listener.listen(128)
            except OSError:
                listener.close()
                continue
            listener.setblocking(False)
            return listener
        raise OSError(f"the proxy found no port on {self.address} (asked for {port or 'any'})")

    def _run(self) -> None:
        try:
            while not self._closed:
                self._watch_what_matters()
                for key, events in self._selector.select():
                    if key.fileobj is self._wake_reader:
                        self._wake_reader.recv(_CHUNK)
                    elif key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._serve(key.data, key.fileobj, events)
                # Last, so that no event of this round is served after an order was called done.
                while self._orders:
                    action, done = self._orders.popleft()
                    try:
                        action()
                        done.set_result(None)
                    except Exception as error:  # noqa: BLE001 - handed to the caller of the order
                        done.set_exception(error)
        finally:
            self._closed = True
            self._reset_all()
            self._selector.close()
            self._listener.close()
            self._wake_reader.close()

    def _watch_what_matters(self) -> None:
        """Register exactly what can be served now. A handful of connections: built anew each round, never
        stale.
        """
        wanted: dict[socket.socket, tuple[int, _Connection | None]] = {self._wake_reader: (selectors.EVENT_READ, None)}
        if not self._frozen:
            if not self._refusing:
                wanted[self._listener] = (selectors.EVENT_READ, None)
            for connection in self._connections:
                for pipe in connection.pipes:
                    if not pipe.ended and len(pipe.held) < _HIGH_WATER:
                        events = wanted.get(pipe.source, (0, None))[0]
                        wanted[pipe.source] = (events | selectors.EVENT_READ, connection)
                    if pipe.held:
                        events = wanted.get(pipe.target, (0, None))[0]
                        wanted[pipe.target] = (events | selectors.EVENT_WRITE, connection)
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
        for sock, (events, served) in wanted.items():
            self._selector.register(sock, events, served)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        self.accepted += 1
        if self._cut:
            _reset(client)
            return
        try:
            server = socket.create_connection(self.target, timeout=5)
        except OSError:
            _reset(client)  # the target is down: this is how its kernel would say so
            return
        for sock in (client, server):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(_Connection(client, server))

    def _serve(self, connection: _Connection, sock: object, events: int) -> None:
        if connection not in self._connections:
            return  # ended by an earlier event of this round
        try:
            for pipe in connection.pipes:
                if pipe.source is sock and events & selectors.EVENT_READ:
                    _read(pipe)
                if pipe.target is sock or pipe.held or pipe.ended:
                    _write(pipe)
        except OSError:
            self._drop(connection)
            return
        if all(pipe.passed_on_end for pipe in connection.pipes):
            self._drop(connection, politely=True)

    def _drop(self, connection: _Connection, *, politely: bool = False) -> None:
        self._connections.discard(connection)
        for sock in connection.sockets():
            if politely:
                sock.close()
            else:
                _reset(sock)

    def _reset_all(self) -> None:
        for connection in list(self._connections):
            self._drop(connection)


def _read(pipe: _Pipe) -> None:
    with contextlib.suppress(BlockingIOError):
        data = pipe.source.recv(_CHUNK)
        pipe.held += data
        pipe.ended = not data


def _write(pipe: _Pipe) -> None:
    with contextlib.suppress(BlockingIOError):
        while pipe.held:
            del pipe.held[: pipe.target.send(pipe.held)]
        if pipe.ended and not pipe.passed_on_end:
            pipe.passed_on_end = True
            pipe.target.shutdown(socket.SHUT_WR)


def _reset(sock: socket.socket) -> None:
    """Close with a RST instead of a FIN: the other side gets an error, not an end of file."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
