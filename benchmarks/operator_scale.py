"""A gang of 512 pods, and 5,000 jobs of which 1,000 run and report: what the operator takes and how it stays awake.

Run it from the repository: `python benchmarks/operator_scale.py [seconds [gang [resting [running]]]]`. The control
plane is real; the workers are pods that this program calls Running, and their agents one HTTP server on loopback (load,
not the thing measured).
Baselines in the same run: the same pods by raw POSTs; the lag of this program's own idle event loop, which is what the
machine does to anybody. Goals: the gang created in <= 1.3 s; memory < 150 MB; loop lag p99 < 50 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from operator_bench import ours
from operator_bench.client import BenchClient, Json, encoded, now
from operator_bench.usage import cpu_seconds, memory_mib

from orchestra.operator.names import AGENT_PORT
from testbed.control_plane import ControlPlane
from testbed.control_plane_options import ControlPlaneOptions

# Smaller numbers on the command line are for trying this program out: they say nothing about the goals.
SECONDS, GANG, RESTING, RUNNING = (
    int(word) for word in (*sys.argv[1:], *("90", "512", "4000", "1000")[len(sys.argv) - 1 :])
)
# Loopback cannot be an endpoint of a Service: those controllers would only complain, and take the CPU.
QUIET = ("--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller",)
_LAG = re.compile(r'^event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
_REQUESTS = re.compile(r'^rest_client_requests_total\{.*method="(\w+)".*\} (\S+)$', re.MULTILINE)


class Pages:
    """The operator's own numbers."""

    def __init__(self, port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        self.lag = {float(bound): float(count) for bound, count in _LAG.findall(text)}
        self.requests: Counter[str] = Counter()
        for method, count in _REQUESTS.findall(text):
            self.requests[method] += int(float(count))

    def writes(self) -> int:
        """Requests that change something."""
        return sum(count for method, count in self.requests.items() if method != "GET")

    def lag_since(self, before: Pages, share: float) -> float:
        """The bound under which this share of heartbeats was since then."""
        counts = {bound: self.lag[bound] - before.lag.get(bound, 0.0) for bound in self.lag}
        total = counts[float("inf")]
        return min(bound for bound, count in counts.items() if count >= share * total)


async def one_gang(plane: ControlPlane, namespace: str) -> None:
    """512 pods of one job, against the same pods posted by this client."""
    async with BenchClient(plane, namespace) as client:
        jobs, took = ours.collection(namespace), []
        for number in range(4):
            client.expect(GANG, ours.is_worker)
            began = now()
            await client.post(jobs, encoded(ours.job(f"gang{number}", GANG)))
            ended = await client.reached(300)
            if number:
                took.append(ended - began)
            if number < 3:
                await client.clear(jobs)
        sample = plane.admin.get(client.pods_path, labelSelector="torchrun.ai/role=worker", limit="1")["items"][0]
        await client.clear(jobs)
        pods = []
        for index in range(GANG):
            metadata = {"name": f"raw-{index}", "labels": sample["metadata"]["labels"]}
            spec = {
                name: value for name, value in sample["spec"].items() if name not in ("priority", "preemptionPolicy")
            }
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            pods.append((client.pods_path, encoded(body)))
        raw = []
        for _ in range(3):
            client.expect(GANG, ours.is_worker)
            began = now()
            await client.post_all(pods, width=64)
            raw.append(await client.reached(300) - began)
            await client.clear(client.pods_path)
    best, base = min(took), min(raw)
    print(f"a gang of {GANG}: ours {best:.2f} s, raw POSTs {base:.2f} s: ratio {best / base:.2f}", flush=True)


async def many_jobs(plane: ControlPlane, namespace: str, pid: int, port: int, seconds: float) -> None:
    """Fill the cluster, let it settle, look for a while."""
    async with BenchClient(plane, namespace) as client, agents():
        jobs = ours.collection(namespace)
        before = memory_mib(pid)
        began = now()
        resting = [ours.job(f"rests-{number}", 1) for number in range(RESTING)]
        for body in resting:
            body["spec"]["suspend"] = True
        await client.post_all([(jobs, encoded(body)) for body in resting])
        client.expect(RUNNING, ours.is_worker)
        await client.post_all([(jobs, encoded(ours.job(f"runs-{number}", 1))) for number in range(RUNNING)])
        await client.reached(900)
        print(f"{RESTING + RUNNING} jobs, {RUNNING} with a pod: {now() - began:.0f} s", flush=True)
        await asyncio.to_thread(call_them_running, plane, namespace)
        await settled(client, jobs)
        first, cpu = await asyncio.to_thread(Pages, port), cpu_seconds({"operator": pid})["operator"]
        began, own = now(), await lag_of_this_loop(seconds)
        last, took = await asyncio.to_thread(Pages, port), now() - began
        used = (cpu_seconds({"operator": pid})["operator"] - cpu) / took
    late, usual = (last.lag_since(first, share) * 1e3 for share in (0.99, 0.5))
    print(
        f"{RUNNING} running and reporting among {RESTING + RUNNING}, for {took:.0f} s:\n"
        f"  memory {memory_mib(pid):.0f} MiB (at most {memory_mib(pid, 'VmHWM'):.0f}, empty {before:.0f})\n"
        f"  loop lag p99 <= {late:.0f} ms, p50 <= {usual:.0f} ms"
        f" (an idle loop beside it: p99 {own * 1e3:.0f} ms)\n"
        f"  {(last.writes() - first.writes()) / took:.1f} writes a second, {used:.2f} of a core"
    )


@contextlib.asynccontextmanager
async def agents() -> AsyncIterator[None]:
    """Every worker's agent: each counts two steps a second."""

    async def progress(_: web.Request) -> web.Response:
        step = int(time.time() * 2) % 1_000_000
        return web.json_response({"progress": {"step": step, "totalSteps": 1_000_000, "loss": 1.0 / (1 + step)}})

    application = web.Application()
    application.router.add_get("/progress", progress)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", AGENT_PORT).start()  # noqa: S104 -- each pod has a loopback address of its own
    try:
        yield
    finally:
        await runner.cleanup()


def call_them_running(plane: ControlPlane, namespace: str) -> None:
    """What a thousand kubelets would say."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    for number, pod in enumerate(plane.admin.get(path)["items"]):
        address = f"127.1.{number // 250}.{number % 250 + 1}"
        ready = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready}
        plane.admin.patch(f"{path}/{pod['metadata']['name']}/status", {"status": status})


async def settled(client: BenchClient, jobs: str) -> None:
    """Until every running job has reported once."""
    end = now() + 600
    while True:
        items: list[Json] = msgspec.json.decode(await client.get(jobs))["items"]
        if sum(bool((one.get("status") or {}).get("progress")) for one in items) >= RUNNING:
            break
        if now() > end:
            raise RuntimeError("not all jobs report after ten minutes")
        await asyncio.sleep(5)
    await asyncio.sleep(35)  # first words are written at once; then the rates hold


async def lag_of_this_loop(seconds: float) -> float:
    """The same heartbeat as the operator's, here, where almost nothing happens: p99."""
    lags, end = [], now() + seconds
    while now() < end:
        began = now()
        await asyncio.sleep(1.0)
        lags.append(now() - began - 1.0)
    return sorted(lags)[int(len(lags) * 0.99)]


def main() -> None:
    """One control plane for both."""
    options = ControlPlaneOptions(scheduler=False, controller_manager_arguments=QUIET)
    with contextlib.ExitStack() as held:
        work = Path(held.enter_context(tempfile.TemporaryDirectory()))
        plane = held.enter_context(ControlPlane(options=options))
        namespace = held.enter_context(plane.namespace())
        ours.install(plane)
        plane.admin.create(ours.collection(namespace, "torchrunqueues"), ours.queue())
        with ours.running(plane, work / "gang.log"):
            asyncio.run(one_gang(plane, namespace))
        with ours.running(plane, work / "many.log") as (pid, port):
            asyncio.run(many_jobs(plane, namespace, pid, port, SECONDS))


if __name__ == "__main__":
    main()
