"""The TCP proxy passes everything on, until it is told not to."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from testbed.proxy import TcpProxy
from testbed.waiting import wait_until


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back what it gets, and ends when the client does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve_echo, args=(server,))
        thread.start()
        yield server.getsockname()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def serve_echo(server: socket.socket) -> None:
    clients = []
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            clients.append(threading.Thread(target=echo_one, args=(connection,)))
            clients[-1].start()
    for client in clients:
        client.join()


def echo_one(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        while data := connection.recv(65536):
            connection.sendall(data)


@pytest.fixture
def proxy(echo: tuple[str, int]) -> Iterator[TcpProxy]:
    with TcpProxy(echo) as proxy:
        yield proxy


@contextlib.contextmanager
def dial(proxy: TcpProxy, timeout: float = 30) -> Iterator[socket.socket]:
    with socket.create_connection((proxy.address, proxy.port), timeout=timeout) as connection:
        yield connection


def asked(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return connection.recv(len(data), socket.MSG_WAITALL)


def hears_nothing(connection: socket.socket) -> bool:
    connection.settimeout(0.3)
    try:
        connection.recv(1)
        return False
    except TimeoutError:
        return True
    finally:
        connection.settimeout(30)


def test_everything_passes_in_both_directions_also_the_end(proxy: TcpProxy) -> None:
    sent = bytes(range(256)) * 20_000  # 5 MB: more than all the buffers on the way
    received = bytearray()
    with dial(proxy) as connection:

        def write() -> None:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)

        writer = threading.Thread(target=write)
        writer.start()
        while data := connection.recv(65536):
            received += data
        writer.join()
    assert bytes(received) == sent
    wait_until("the connection is forgotten", lambda: proxy.open_connections == 0)
    assert proxy.accepted == 1


def test_frozen_connections_are_silent_and_lose_nothing(proxy: TcpProxy) -> None:
    with dial(proxy) as old:
        assert asked(old, b"before") == b"before"
        proxy.freeze()
        old.sendall(b"held")
        with dial(proxy) as new:  # a connection is made, and then nothing
            new.sendall(b"new")
            assert hears_nothing(old)
            assert hears_nothing(new)
            proxy.thaw()
            assert old.recv(4, socket.MSG_WAITALL) == b"held"
            assert new.recv(3, socket.MSG_WAITALL) == b"new"


def test_cut_resets_old_and_new_connections_until_healed(proxy: TcpProxy) -> None:
    with dial(proxy) as old:
        assert asked(old, b"before") == b"before"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            old.recv(1)
        with pytest.raises(ConnectionResetError), dial(proxy) as new:
            asked(new, b"new")
    proxy.heal()
    with dial(proxy) as healed:
        assert asked(healed, b"healed") == b"healed"


def test_reset_connections_hits_only_those_that_are_open(proxy: TcpProxy) -> None:
    with dial(proxy) as old:
        assert asked(old, b"before") == b"before"
        proxy.reset_connections()
        with pytest.raises(ConnectionResetError):
            old.recv(1)
    with dial(proxy) as new:
        assert asked(new, b"new") == b"new"


def test_refuse_turns_new_connections_away_and_keeps_old_ones(proxy: TcpProxy) -> None:
    with dial(proxy) as old:
        assert asked(old, b"before") == b"before"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError), dial(proxy):
            pass
        assert asked(old, b"still") == b"still"
    proxy.heal()
    with dial(proxy) as new:
        assert asked(new, b"new") == b"new"


def test_a_target_that_is_down_looks_like_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = server.getsockname()
    with TcpProxy(target) as proxy, pytest.raises(ConnectionResetError), dial(proxy) as connection:
        asked(connection, b"anybody?")


def test_a_closed_proxy_leaves_neither_port_nor_thread(echo: tuple[str, int]) -> None:
    before = threading.active_count()
    proxy = TcpProxy(echo)
    proxy.close()
    proxy.close()
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError), dial(proxy):
        pass
    with pytest.raises(RuntimeError, match="closed"):
        proxy.freeze()
