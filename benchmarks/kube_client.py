"""What the kube client costs over a bare aiohttp loop, on a real API server, in the same run.

Run it from the repository: `python benchmarks/kube_client.py [rounds]`. It measures the CPU time of this process for
each pod that is created (a wide POST of 500), and the time from the bytes of 1,000 pods to structs in a cache.
Targets: at most 1.35 times the bare loop for a create, at most 1.75 times the bare decode.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from kube_parts import Pod, connect, pod_manifest
from orchestra.kube.cache import Cache
from orchestra.kube.client import Client
from orchestra.kube.config import load_kubeconfig
from orchestra.kube.identity import Credential
from orchestra.kube.listing import Selection, read_page
from orchestra.kube.objects import PODS, Key
from orchestra.kube.reflector import Reflector
from orchestra.kube.transport import tls_context
from orchestra.kube.writes import Child, create_children
from testbed.control_plane import ControlPlane
from testbed.control_plane_options import ControlPlaneOptions

COUNT = 500
WIDTH = 64


class PodList(msgspec.Struct):
    """What a bare loop would decode a list to."""

    items: list[Pod]


def bodies(prefix: str) -> list[dict[str, Any]]:
    """Pods that a real job could have: some labels, some environment."""
    made = []
    for number in range(COUNT):
        body = pod_manifest(f"{prefix}-{number}")
        body["metadata"]["labels"] = {"job": "benchmark", "index": str(number)}
        body["spec"]["containers"][0]["env"] = [{"name": f"VARIABLE_{n}", "value": "x" * 20} for n in range(20)]
        made.append(body)
    return made


async def measured(action: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """CPU and wall seconds of this process."""
    cpu, wall = time.process_time(), time.perf_counter()
    await action()
    return time.process_time() - cpu, time.perf_counter() - wall


async def create_bare(session: aiohttp.ClientSession, url: str, pods: list[dict[str, Any]]) -> None:
    """The least that can be done: encode, POST, read, at most 64 at a time."""
    waiting = list(reversed(pods))

    async def work() -> None:
        while waiting:
            body = msgspec.json.encode(waiting.pop())
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
                await answer.read()
                if answer.status != 201:
                    raise RuntimeError(f"{answer.status}: {await answer.text()}")

    await asyncio.gather(*(work() for _ in range(WIDTH)))


async def create_ours(client: Client, namespace: str, pods: list[dict[str, Any]]) -> None:
    """As an operator would, with slow start and the owner's check."""
    children = [Child(PODS, Key(namespace, pod["metadata"]["name"]), pod) for pod in pods]
    creation = await create_children(client, children, owner_uid="none", width=WIDTH)
    if not creation.complete:
        raise RuntimeError(str(creation.errors[:1]))


async def compare_creates(plane: ControlPlane, namespace: str, rounds: int) -> None:
    """Bare and ours in turn, so that both see the same machine."""
    access = load_kubeconfig(plane.admin_kubeconfig)
    url = access.server + PODS.collection(namespace)
    bare, ours = [], []
    connector = aiohttp.TCPConnector(ssl=tls_context(access, Credential()), limit=WIDTH)
    async with (
        aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {access.token}"}) as session,
        connect(plane.admin_kubeconfig) as client,
    ):
        for number in range(rounds + 1):
            first = await measured(lambda n=number: create_bare(session, url, bodies(f"bare-{n}")))  # type: ignore[misc]
            second = await measured(lambda n=number: create_ours(client, namespace, bodies(f"ours-{n}")))  # type: ignore[misc]
            if number:  # the first round opens the connections
                bare.append(first)
                ours.append(second)
            await asyncio.to_thread(plane.admin.delete, PODS.collection(namespace), grace_seconds=0)
    microseconds = [statistics.median(cpu for cpu, _ in found) / COUNT * 1e6 for found in (bare, ours)]
    rates = [COUNT / statistics.median(wall for _, wall in found) for found in (bare, ours)]
    print(
        f"create {COUNT} pods: bare {microseconds[0]:.0f} µs CPU a pod ({rates[0]:.0f} pods/s), "
        f"ours {microseconds[1]:.0f} µs ({rates[1]:.0f} pods/s): ratio {microseconds[1] / microseconds[0]:.2f}"
    )


async def compare_decodes(plane: ControlPlane, namespace: str, rounds: int) -> None:
    """1,000 pods from bytes to structs in a cache, against bytes to structs."""
    async with connect(plane.admin_kubeconfig) as client:
        for prefix in ("a", "b"):
            await create_ours(client, namespace, bodies(prefix))
        answer = await client.transport.request("GET", PODS.collection(namespace))
        decode_list = msgspec.json.Decoder(PodList).decode
        bare, ours = [], []
        for _ in range(rounds * 5):
            began = time.perf_counter()
            found = decode_list(answer.body).items
            bare.append(time.perf_counter() - began)
            cache: Cache[Pod] = Cache()
            reflector = Reflector(client, PODS, Pod, cache, selection=Selection(namespace=namespace))
            began = time.perf_counter()
            items: dict[Key, Pod] = {}
            page = read_page(answer.body, Pod)
            reflector._take_page(page, items)
            reflector._listed(items, page.version)
            ours.append(time.perf_counter() - began)
            if len(found) != 2 * COUNT or len(cache) != 2 * COUNT:
                raise RuntimeError(f"{len(found)} and {len(cache)} pods, not {2 * COUNT}")
    medians = [statistics.median(times) * 1e3 for times in (bare, ours)]
    print(
        f"decode {2 * COUNT} pods ({len(answer.body) / 1e6:.1f} MB): bare {medians[0]:.1f} ms, "
        f"ours with cache {medians[1]:.1f} ms: ratio {medians[1] / medians[0]:.2f}"
    )


def main() -> None:
    """One control plane without controllers, so that the server does nothing but what we ask."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    options = ControlPlaneOptions(controller_manager=False, scheduler=False)
    with ControlPlane(options=options) as plane, plane.namespace() as namespace:
        asyncio.run(compare_creates(plane, namespace, rounds))
        asyncio.run(compare_decodes(plane, namespace, rounds))


if __name__ == "__main__":
    main()
