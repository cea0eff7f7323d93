"""From a job's POST to its pods: our operator, raw concurrent POSTs, Kubeflow Trainer + JobSet; one control plane.

Run it from the repository: `python benchmarks/operator_start.py [rounds [jobs]]`. One job of 8 pods at a time, then
bursts of 200 jobs of 8; CPU of all components a pod; writes and webhook calls a job. Without ORCHESTRA_KUBEFLOW_ASSETS
(see operator_bench/kubeflow.py) that row is left out. They take turns, so that each sees the same machine: the ratios
hold on a busy one too, the absolute numbers do not.
Goals: one job <= 0.35 of Kubeflow's time; a burst of >= 300 pods/s and >= 3.5 times Kubeflow's; <= 8 ms CPU a pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from operator_bench import kubeflow, ours
from operator_bench.client import BenchClient, encoded, now
from operator_bench.usage import control_plane_pids, cpu_seconds, requests

from testbed.control_plane import ControlPlane
from testbed.control_plane_options import ControlPlaneOptions

Json = dict[str, Any]
NODES, BURSTS, IDLE = 8, 2, 5.0
PATIENCE = 600.0


@dataclass
class Contender:
    """How one of them is asked for a job."""

    name: str
    collections: list[str]
    posts: Callable[[str], list[tuple[str, bytes]]]
    counts: Callable[[dict[str, str]], bool]
    pids: dict[str, int] = field(default_factory=dict)


@dataclass
class Measured:
    """What one of them did."""

    single: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    pods: int = 0
    cpu: dict[str, float] = field(default_factory=dict)
    writes: Counter[str] = field(default_factory=Counter)
    webhooks: float = 0

    @property
    def middle(self) -> float:
        """Seconds of one job, p50."""
        return statistics.median(self.single)

    @property
    def rate(self) -> float:
        """Pods a second of a burst."""
        return statistics.median(self.rates)

    @property
    def cpu_ms(self) -> float:
        """CPU of the control plane, its controllers and this client, a pod of a burst."""
        return sum(self.cpu.values()) / self.pods * 1e3


async def one_job(client: BenchClient, contender: Contender, name: str) -> float:
    """Seconds from the POST to the last pod."""
    await client.warm(NODES)
    client.expect(NODES, contender.counts)
    began = now()
    await client.post_all(contender.posts(name))
    took = await client.reached(PATIENCE) - began
    await asyncio.sleep(0.7)
    return took


async def burst(client: BenchClient, contender: Contender, jobs: int, into: Measured) -> None:
    """Many jobs as fast as they can be posted."""
    posts = [post for number in range(jobs) for post in contender.posts(f"b{number}")]
    client.expect(jobs * NODES, contender.counts)
    pids = {**control_plane_pids(client.plane), **contender.pids}
    resting = cpu_seconds(pids)
    await asyncio.sleep(IDLE)
    cpu, began = cpu_seconds(pids), now()
    await client.post_all(posts)
    took = await client.reached(PATIENCE) - began
    into.rates.append(jobs * NODES / took)
    into.pods += jobs * NODES
    for name, spent in cpu_seconds(pids).items():
        # What they use for doing nothing (leases, probes) is not the pods' cost, however long the burst takes.
        idle = (cpu[name] - resting[name]) / IDLE * took
        into.cpu[name] = into.cpu.get(name, 0.0) + max(0.0, spent - cpu[name] - idle)


async def measure(
    plane: ControlPlane, namespace: str, contenders: list[Contender], rounds: int, jobs: int
) -> dict[str, Measured]:
    """All of them in turn, again and again, so that each sees the same machine."""
    results = {contender.name: Measured() for contender in contenders}
    async with BenchClient(plane, namespace) as client:
        for number in range(rounds + 1):
            for contender in contenders:
                took = await one_job(client, contender, f"s{number}")
                if number:  # the first opens connections and fills caches
                    results[contender.name].single.append(took)
                await client.clear(*contender.collections)
                await asyncio.sleep(0.5)
        for contender in contenders:
            before = await asyncio.to_thread(requests, plane)
            await one_job(client, contender, "counted")
            await asyncio.sleep(3)
            after = await asyncio.to_thread(requests, plane)
            into = results[contender.name]
            into.writes, into.webhooks = after[0] - before[0], after[1] - before[1]
            await client.clear(*contender.collections)
        for _ in range(BURSTS):
            for contender in contenders:
                await asyncio.sleep(2)
                await burst(client, contender, jobs, results[contender.name])
                await client.clear(*contender.collections)
    return results


def raw_posts(namespace: str, pod: Json) -> Callable[[str], list[tuple[str, bytes]]]:
    """The pods that our operator makes, posted by this client."""
    path = f"/api/v1/namespaces/{namespace}/pods"

    def posts(job: str) -> list[tuple[str, bytes]]:
        made = []
        for index in range(NODES):
            name = f"{job}-{index}"
            metadata = {"name": name, "labels": {**pod["metadata"]["labels"], "torchrun-job-name": job}}
            made.append((path, encoded({**pod, "metadata": metadata})))
        return made

    return posts


async def sample_pod(plane: ControlPlane, namespace: str) -> Json:
    """One pod of ours, less what the API server and the owner added."""
    async with BenchClient(plane, namespace) as client:
        client.expect(1, ours.is_worker)
        await client.post(ours.collection(namespace), encoded(ours.job("sample", 1)))
        await client.reached(60)
        found = plane.admin.get(client.pods_path)["items"][0]
        await client.clear(ours.collection(namespace))
    spec = {name: value for name, value in found["spec"].items() if name not in ("priority", "preemptionPolicy")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": found["metadata"]["labels"]}, "spec": spec}


def show(results: dict[str, Measured]) -> None:
    """The table, and the ratios."""
    print(f"\n{'':<20}{'one job p50':>13}{'p95':>9}{'burst':>13}{'CPU a pod':>12}{'writes':>8}{'webhooks':>10}")
    for name, one in results.items():
        late = sorted(one.single)[int(len(one.single) * 0.95)]
        print(
            f"{name:<20}{one.middle * 1e3:>10.1f} ms{late * 1e3:>6.0f} ms{one.rate:>7.0f} pods/s"
            f"{one.cpu_ms:>9.1f} ms{sum(one.writes.values()):>8}{one.webhooks:>10.0f}"
        )
        print(
            f"{'':<4}CPU a pod: " + ", ".join(f"{who} {spent / one.pods * 1e3:.2f}" for who, spent in one.cpu.items())
        )
        print(f"{'':<4}one job's writes: " + ", ".join(f"{n} {what}" for what, n in one.writes.most_common()))
    mine = results["ours"]
    for name, other in results.items():
        if other is not mine:
            slower, faster = mine.middle / other.middle, mine.rate / other.rate
            cheaper = mine.cpu_ms / other.cpu_ms
            print(
                f"ours to {name}: one job {slower:.2f} of its time, burst {faster:.2f} of its rate, CPU {cheaper:.2f}"
            )
    print("load of the machine (1, 5, 15 minutes):", *(f"{load:.1f}" for load in os.getloadavg()))


def main() -> None:
    """One control plane for all of them, at the same time."""
    rounds, jobs = (int(word) for word in (*sys.argv[1:], *("15", "200")[len(sys.argv) - 1 :]))
    options = ControlPlaneOptions(scheduler=False, controller_manager_arguments=kubeflow.CONTROLLER_MANAGER)
    with contextlib.ExitStack() as held:
        work = Path(held.enter_context(tempfile.TemporaryDirectory()))
        plane = held.enter_context(ControlPlane(options=options))
        namespace = held.enter_context(plane.namespace())
        ours.install(plane)
        plane.admin.create(ours.collection(namespace, "torchrunqueues"), ours.queue())
        pid, _ = held.enter_context(ours.running(plane, work / "ours.log"))
        pod = asyncio.run(sample_pod(plane, namespace))
        path = ours.collection(namespace)
        pods = f"/api/v1/namespaces/{namespace}/pods"
        contenders = [
            Contender("raw POSTs", [pods], raw_posts(namespace, pod), ours.is_worker),
            Contender(
                "ours", [path], lambda name: [(path, encoded(ours.job(name, NODES)))], ours.is_worker, {"operator": pid}
            ),
        ]
        if kubeflow.available():
            theirs = kubeflow.collection(namespace)
            contenders.append(
                Contender(
                    "Kubeflow (tuned)",
                    [theirs],
                    lambda name: [(theirs, encoded(kubeflow.job(name, namespace, NODES)))],
                    lambda labels: kubeflow.LABEL in labels,
                    held.enter_context(kubeflow.running(plane)),
                )
            )
        show(asyncio.run(measure(plane, namespace, contenders, rounds, jobs)))


if __name__ == "__main__":
    main()
