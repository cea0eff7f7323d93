"""Free ports for servers that cannot choose one themselves."""

import random
import socket
from pathlib import Path

_HIGHEST = 32767
_LOWEST = 20000


def free_port(address: str = "127.0.0.1") -> int:
    """A port that was free a moment ago. Somebody may take it before it is used: be ready to try another.

    Never one from the range that the system gives to outgoing connections. There a client that keeps dialling
    a dead server on loopback is one day given the server's own port, connects to *itself*, and the server
    cannot come back.
    """
    lowest, highest = _server_ports()
    for _ in range(1000):
        port = random.randint(lowest, highest)
        if _is_free(address, port):
            return port
    raise OSError(f"no free port on {address} between {lowest} and {highest}")


def _is_free(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


def _server_ports() -> tuple[int, int]:
    try:
        first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first_outgoing = _HIGHEST + 1
    highest = min(_HIGHEST, first_outgoing - 1)
    return (_LOWEST, highest) if highest - _LOWEST > 1000 else (_LOWEST, _HIGHEST)
