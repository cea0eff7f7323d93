"""The cluster's network: one bridge on the machine, one network namespace a node, and no way out.

    machine   orch0  10.126.255.1   API server 10.127.0.1, DNS 10.127.0.10 (in the service range)
                |
      +---------+---------+
    orch-n0            orch-n1      veth pairs; unplugging one is how a node is cut off
      |                   |
    eth0 10.126.255.10  eth0 .11    the nodes' own namespaces, each with its pod bridge 10.126.<node>.1/24

**No packet leaves the machine**, three times over: a node has no default route (`unreachable`), the machine
refuses to forward anything that came in over the bridge, and addresses of our ranges that nobody has are
`unreachable` instead of following the machine's default route. The machine's own `ip_forward` is not touched.
"""

import ipaddress
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testbed.packages import system_path

BRIDGE = "orch0"
WHOLE_RANGE = "10.126.0.0/15"
SERVICE_RANGE = "10.127.0.0/16"
API_ADDRESS = "10.127.0.1"  # what the `kubernetes` Service gets, and in-cluster clients are told
DNS_ADDRESS = "10.127.0.10"
MACHINE_ADDRESS = "10.126.255.1"
RULE_PRIORITY = "1266"
CLUSTER_DOMAIN = "cluster.local"


class NetworkError(Exception):
    """The network could not be made; the text has the command and what it said."""


def node_address(index: int) -> str:
    """The node's InternalIP."""
    return f"10.126.255.{10 + index}"


def pod_subnet(index: int) -> str:
    """The range the node's pods get their addresses from."""
    return f"10.126.{index}.0/24"


def up() -> None:
    """Make the bridge, its addresses and the routes that keep everything inside."""
    _refuse_overlap()
    _ip_batch(
        f"link add {BRIDGE} address {_hardware_address(MACHINE_ADDRESS)} type bridge",
        f"link set {BRIDGE} up",
    )
    # Without this the bridge would speak IPv6 (router solicitations) nobody asked for.
    _disable_ipv6(BRIDGE)
    _ip_batch(
        f"addr add {MACHINE_ADDRESS}/24 dev {BRIDGE}",
        f"addr add {API_ADDRESS}/32 dev {BRIDGE}",
        f"addr add {DNS_ADDRESS}/32 dev {BRIDGE}",
        f"route add unreachable {WHOLE_RANGE}",
        f"rule add iif {BRIDGE} priority {RULE_PRIORITY} unreachable",
    )


def plug(index: int, pid: int, nodes: int) -> None:
    """Wire the network namespace of process `pid` to the bridge, as node `index` of `nodes`."""
    port, address = _port(index), node_address(index)
    _ip_batch(
        f"link add {port} type veth peer name eth0 address {_hardware_address(address)} netns {pid}",
        f"link set {port} master {BRIDGE} up",
    )
    _disable_ipv6(port)
    neighbours = [other for other in range(nodes) if other != index]
    _ip_batch(
        "link set lo up",
        f"addr add {address}/24 dev eth0",
        "link set eth0 up",
        *(f"route add {service}/32 via {MACHINE_ADDRESS}" for service in (API_ADDRESS, DNS_ADDRESS)),
        *(f"route add {pod_subnet(other)} via {node_address(other)}" for other in neighbours),
        "route add unreachable default",
        inside=pid,
    )
    _run(["nsenter", "-t", str(pid), "-n", "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])
    _ip_batch(f"route replace {pod_subnet(index)} via {address} dev {BRIDGE}")


def unplug(index: int) -> None:
    """Take the node's cable away for good, as when its machine is gone. Nothing happens if there is none."""
    _run(["ip", "link", "del", _port(index)], check=False)


def cut(index: int) -> None:
    """Cut the node off silently: neither side sees a closed connection, packets just go nowhere."""
    _run(["ip", "link", "set", _port(index), "nomaster"])


def heal(index: int) -> None:
    """Undo `cut`."""
    _run(["ip", "link", "set", _port(index), "master", BRIDGE])


def is_cut(index: int) -> bool:
    """Whether the node's cable is there but unplugged."""
    port = Path("/sys/class/net", _port(index))
    return port.exists() and not (port / "master").exists()


def down() -> None:
    """Remove everything `up` and `plug` made, also half-made or left by a cluster that was killed."""
    for name in _our_links():
        _run(["ip", "link", "del", name], check=False)
    _run(["ip", "route", "del", "unreachable", WHOLE_RANGE], check=False)
    _run(["ip", "rule", "del", "priority", RULE_PRIORITY], check=False)


def leftovers() -> list[str]:
    """What of ours is in the machine's network right now, one line each."""
    found = [f"network device {name}" for name in _our_links()]
    if any(route.get("dst") == WHOLE_RANGE for route in _ip_json("route", "show")):
        found.append(f"route {WHOLE_RANGE}")
    if any(str(rule.get("priority")) == RULE_PRIORITY for rule in _ip_json("rule", "show")):
        found.append(f"routing rule {RULE_PRIORITY}")
    return found


def _our_links() -> list[str]:
    names = (path.name for path in Path("/sys/class/net").iterdir())
    # Ports first: a bridge that goes leaves its ports behind.
    return sorted((name for name in names if name == BRIDGE or name.startswith("orch-n")), key=lambda n: n == BRIDGE)


def _port(index: int) -> str:
    return f"orch-n{index}"


def _hardware_address(address: str) -> str:
    """A fixed one for each of our addresses, so that what the neighbours have learnt stays true.

    Left alone, a bridge takes the lowest address of its ports and changes it when that port goes: the other node
    would then be unheard for seconds because this one died. The same holds for a node that comes back.
    """
    return "02:00:" + ":".join(f"{byte:02x}" for byte in ipaddress.ip_address(address).packed)


def _refuse_overlap() -> None:
    ours = ipaddress.ip_network(WHOLE_RANGE)
    for route in _ip_json("route", "show"):
        destination = str(route.get("dst"))
        if destination != "default" and ipaddress.ip_network(destination, strict=False).overlaps(ours):
            raise NetworkError(
                f"this machine already routes {destination} (dev {route.get('dev', '?')}), within the "
                f"testbed's {WHOLE_RANGE}; the testbed would break that route, so it does not start"
            )


def _disable_ipv6(device: str) -> None:
    switch = Path("/proc/sys/net/ipv6/conf", device, "disable_ipv6")
    if switch.exists():
        switch.write_text("1")


def _ip_json(*arguments: str) -> list[dict[str, object]]:
    output = _run(["ip", "-j", "-4", *arguments])
    parsed: list[dict[str, object]] = json.loads(output or "[]")
    return parsed


def _ip_batch(*commands: str, inside: int | None = None) -> None:
    enter = ["nsenter", "-t", str(inside), "-n"] if inside is not None else []
    _run([*enter, "ip", "-batch", "-"], text="\n".join(commands) + "\n")


def _run(command: Sequence[str], *, text: str | None = None, check: bool = True) -> str:
    environment = {"PATH": system_path()}
    done = subprocess.run(command, input=text, env=environment, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        what = f"{' '.join(command)}" + (f" <<< {text.strip()!r}" if text else "")
        raise NetworkError(f"{what} failed: {done.stderr.strip()}")
    return done.stdout
