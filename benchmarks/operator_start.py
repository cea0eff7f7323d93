"""From a job's POST to its pods: our operator, raw concurrent POSTs, Kubeflow Trainer + JobSet; one control plane.

Run it from the repository: `python benchmarks/operator_start.py [rounds]`. One job of 8 pods at a time, then a burst
of 200 jobs of 8; CPU of all components a pod; writes and webhook calls a job. Without ORCHESTRA_KUBEFLOW_ASSETS (see
operator_bench/kubeflow.py) that column is left out. Raw POSTs are measured beside each contender, since the machine
may be busier for one than for the other: compare ratios.
Goals: one job <= 0.35 of Kubeflow's time; a burst of >= 300 pods/s and >= 3.5 times Kubeflow's; <= 8 ms CPU a pod.
"""

from __future__ import annotations

import asyncio
import contextlib
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
NODES, JOBS = 8, 200
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

    single: list[float]
    per_second: float
    cpu: dict[str, float]
    writes: Counter[str]
    webhooks: float

    @property
    def cpu_ms(self) -> float:
        """CPU of everything, this client too, a pod."""
        return sum(self.cpu.values()) / (JOBS * NODES) * 1e3


async def measure(plane: ControlPlane, namespace: str, contender: Contender, rounds: int) -> Measured:
    """Singles, one counted job, the burst."""
    async with BenchClient(plane, namespace) as client:
        single = []
        for number in range(rounds + 1):
            await client.warm(NODES)
            client.expect(NODES, contender.counts)
            began = now()
            await client.post_all(contender.posts(f"s{number}"))
            ended = await client.reached(PATIENCE)
            if number:  # the first opens connections and fills caches
                single.append(ended - began)
            await asyncio.sleep(0.7)
            await client.clear(*contender.collections)
            await asyncio.sleep(0.5)
        before = await asyncio.to_thread(requests, plane)
        client.expect(NODES, contender.counts)
        await client.post_all(contender.posts("counted"))
        await client.reached(PATIENCE)
        await asyncio.sleep(3)
        after = await asyncio.to_thread(requests, plane)
        await client.clear(*contender.collections)
        await asyncio.sleep(2)
        posts = [post for number in range(JOBS) for post in contender.posts(f"b{number}")]
        client.expect(JOBS * NODES, contender.counts)
        pids = {**control_plane_pids(plane), **contender.pids}
        cpu, began = cpu_seconds(pids), now()
        await client.post_all(posts)
        ended = await client.reached(PATIENCE)
        used = {name: spent - cpu[name] for name, spent in cpu_seconds(pids).items()}
        await client.clear(*contender.collections)
    rate = JOBS * NODES / (ended - began)
    return Measured(single, rate, used, after[0] - before[0], after[1] - before[1])


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
    print(f"\n{'':<22}{'one job p50':>13}{'p95':>9}{'burst':>13}{'CPU a pod':>12}{'writes':>8}{'webhooks':>10}")
    for name, one in results.items():
        late = sorted(one.single)[int(len(one.single) * 0.95)]
        middle = statistics.median(one.single)
        print(
            f"{name:<22}{middle * 1e3:>10.1f} ms{late * 1e3:>6.0f} ms{one.per_second:>7.0f} pods/s"
            f"{one.cpu_ms:>9.1f} ms{sum(one.writes.values()):>8}{one.webhooks:>10.0f}"
        )
        print(f"{'':<4}CPU: " + ", ".join(f"{who} {spent:.2f} s" for who, spent in one.cpu.items()))
        print(f"{'':<4}one job's writes: " + ", ".join(f"{n} {what}" for what, n in one.writes.most_common()))
    mine = results["ours"]
    for name, other in results.items():
        if other is not mine:
            slower = statistics.median(mine.single) / statistics.median(other.single)
            faster, cheaper = mine.per_second / other.per_second, mine.cpu_ms / other.cpu_ms
            print(
                f"ours to {name}: one job {slower:.2f} of its time, burst {faster:.2f} of its rate, CPU {cheaper:.2f}"
            )


def main() -> None:
    """One control plane for all of them, one after the other."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    options = ControlPlaneOptions(scheduler=False, controller_manager_arguments=kubeflow.CONTROLLER_MANAGER)
    results: dict[str, Measured] = {}
    with contextlib.ExitStack() as held:
        work = Path(held.enter_context(tempfile.TemporaryDirectory()))
        plane = held.enter_context(ControlPlane(options=options))
        namespace = held.enter_context(plane.namespace())
        ours.install(plane)
        plane.admin.create(ours.collection(namespace, "torchrunqueues"), ours.queue())
        with ours.running(plane, work / "ours.log") as (pid, _):
            pod = asyncio.run(sample_pod(plane, namespace))
            posts = raw_posts(namespace, pod)
            pods = f"/api/v1/namespaces/{namespace}/pods"
            jobs = ours.collection(namespace)
            mine = Contender(
                "ours", [jobs], lambda name: [(jobs, encoded(ours.job(name, NODES)))], ours.is_worker, {"operator": pid}
            )
            results["ours"] = asyncio.run(measure(plane, namespace, mine, rounds))
        raw = Contender("raw POSTs", [pods], posts, ours.is_worker)
        results["raw POSTs"] = asyncio.run(measure(plane, namespace, raw, rounds))
        folder = kubeflow.assets()
        if folder is not None:
            with kubeflow.running(plane, folder, work / "kubeflow") as pids:
                theirs = kubeflow.collection(namespace)
                them = Contender(
                    "Kubeflow (tuned)",
                    [theirs],
                    lambda name: [(theirs, encoded(kubeflow.job(name, namespace, NODES)))],
                    lambda labels: kubeflow.LABEL in labels,
                    pids,
                )
                results[them.name] = asyncio.run(measure(plane, namespace, them, rounds))
            results["raw POSTs again"] = asyncio.run(measure(plane, namespace, raw, rounds))
    show(results)


if __name__ == "__main__":
    main()
