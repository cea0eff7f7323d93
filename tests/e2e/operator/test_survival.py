"""Whatever is killed, the job ends with the loss of a run that nothing happened to.

Each job is watched: never do two copies of a worker live within one attempt, and nothing is left at the end.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gated_training import (
    COMMAND,
    GATED,
    QUICK,
    RESUMED,
    SLOW,
    STEPS,
    Json,
    finish,
    let,
    number,
    reach,
    report,
    step,
    uid_of,
    until,
    worker,
    world,
)
from living_workers import Watcher, agent_of, kill9, ranks_of, workers
from testbed import pods
from testbed.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


@contextlib.contextmanager
def watched(site: Any, name: str) -> Iterator[Watcher]:
    """Never two copies within an attempt; and at the end nothing runs and, once the job is deleted, nothing is left."""
    uid = uid_of(site, name)
    with Watcher(uid) as watcher:
        yield watcher
    assert watcher.looks > 0
    assert not watcher.doubles
    wait_until("all its processes are gone", lambda: not [one for one in workers() if one.uid == uid], timeout=SLOW)
    site.cluster.api.delete(site.path("torchrunjob", name))
    every = f"/api/v1/namespaces/{site.namespace}/pods"
    label = {"labelSelector": f"torchrun-job-name={name}"}
    wait_until("no pod is left", lambda: not site.cluster.api.get(every, **label)["items"], timeout=SLOW)


# ---- the tests


FEW = ("worker 0",)
ALL = ("agent 1", "worker 0", "worker 1")


@pytest.mark.parametrize("victims", [pytest.param(FEW, id="few"), pytest.param(ALL, id="all", marks=pytest.mark.soak)])
def test_one_job_survives_the_death_of_everything_in_turn(
    site: Any, undisturbed: float, victims: tuple[str, ...]
) -> None:
    """A rank, the operator, the victims while nobody looks, the API server, a kubelet."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    site.queue(gpus=8)
    # Five GPUs a worker: one on each node.
    spread = {"numNodes": 2, "gpusPerNode": 5, "procsPerNode": 1}
    site.job("tough", COMMAND, maxRestarts=1, lifecycle=QUICK | {"nodeLostSeconds": 10}, **spread)
    with watched(site, "tough"):
        let(site, "tough", 3)
        reach(site, "tough", 3)
        kill9(chance.choice(ranks_of(worker(site, "tough", 1), GATED.encode())))
        until(
            site, "tough", "in place again",
            lambda: report(worker(site, "tough", 1)).get("restarts") == 1 and step(site, "tough") == 3,
        )  # fmt: skip
        for attempt, victim in enumerate(victims, 2):
            # Its own gate, and a step more than the last one could save: else it would resume there, and say nothing.
            let(site, "tough", 2 + 2 * attempt, attempt=attempt)
            site.kill_operator()
            strike(site, victim)
            for _ in range(2):  # at random, while it brings up the next attempt
                site.start_operator()
                time.sleep(chance.uniform(0.5, 2.5))
                site.kill_operator()
            site.start_operator()
            reach(site, "tough", 2 + 2 * attempt, attempt=attempt)
        site.cluster.control_plane.api_server.kill9()
        site.cluster.control_plane.api_server.restart()
        node, last = site.cluster.nodes[1], 1 + len(victims)
        node.kill_kubelet()
        trains_on_without_its_kubelet(site, "tough", node.name, seconds=13, attempt=last)
        assert site.status("tough")["attempt"] == last
        node.revive()
        let(site, "tough", STEPS, attempt=last)
        status = finish(site, "tough", undisturbed)
        assert status["attempt"] == last
        assert status["restarts"] <= 1, "only the rank's death was the job's own, and nobody may have heard of it"


def strike(site: Any, victim: str) -> None:
    """`agent 1`: the process that is the worker; `worker 0`: its pod, without any grace."""
    what, index = victim.split()
    pod = worker(site, "tough", int(index))
    if what == "agent":
        kill9(agent_of(pod))
    else:
        site.cluster.api.delete(f"/api/v1/namespaces/{site.namespace}/pods/{pod['metadata']['name']}", grace_seconds=0)


def trains_on_without_its_kubelet(site: Any, name: str, node: str, seconds: float, attempt: int) -> None:
    """The node is not ready for longer than `nodeLostSeconds`, but its ranks make a step now and then."""
    allowed = step(site, name)
    site.cluster.wait_for_node(node, ready=False)
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        allowed = min(allowed + 1, STEPS - 1)
        let(site, name, allowed, attempt=attempt)
        time.sleep(1.0)


@pytest.mark.soak
def test_a_dead_node_costs_a_job_nothing_but_an_attempt(site: Any, undisturbed: float) -> None:
    """Its processes are gone at one blow; nobody says so. The job is not elastic: all of it starts again elsewhere."""
    site.queue(gpus=8, scheduling={"affinity": {"podAntiAffinity": {PREFERRED: [apart("solid")]}}})
    site.job("solid", COMMAND, gpusPerNode=1, maxRestarts=0, lifecycle=QUICK)
    with watched(site, "solid"):
        let(site, "solid", 5)
        reach(site, "solid", 5)
        assert {pod["spec"]["nodeName"] for pod in site.pods("solid")} == {"n0", "n1"}
        site.cluster.nodes[1].die()
        status = finish(site, "solid", undisturbed)
        assert (status["attempt"], status["restarts"]) == (2, 0)
        assert {pod["spec"]["nodeName"] for pod in site.pods("solid") if number(pod) == 2} == {"n0"}
        site.cluster.nodes[1].revive()  # and what the API server still knows there ends


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def apart(name: str) -> Json:
    """A wish of the workers of this job not to share a node."""
    term = {
        "labelSelector": {"matchLabels": {"torchrun-job-name": name, "torchrun.ai/role": "worker"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"weight": 100, "podAffinityTerm": term}


def test_a_node_cut_off_holds_no_job_up_and_what_it_runs_publishes_nothing(site: Any, undisturbed: float) -> None:
    """A two-node job, half of it behind the cut; and one that trains on there as if nothing had happened."""
    there = {"weight": 100, "preference": {
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]
    }}  # fmt: skip
    site.queue(gpus=8, scheduling={"affinity": {"podAntiAffinity": {PREFERRED: [apart("pair")]}}})
    site.queue("there", gpus=8, scheduling={"affinity": {"nodeAffinity": {PREFERRED: [there]}}})
    small = {"gpusPerNode": 1, "procsPerNode": 1, "maxRestarts": 0, "lifecycle": QUICK}
    site.job("pair", COMMAND, numNodes=2, **small)
    site.job("alone", COMMAND, jobQueue="there", numNodes=1, **small)
    with watched(site, "pair"), watched(site, "alone"):
        for name in ("pair", "alone"):
            let(site, name, 4)
        for name in ("pair", "alone"):
            reach(site, name, 4)
        assert {pod["spec"]["nodeName"] for pod in site.pods("pair")} == {"n0", "n1"}
        assert [pod["spec"]["nodeName"] for pod in site.pods("alone")] == ["n1"]
        site.cluster.nodes[1].cut()
        let(site, "alone", 8, attempt=2)
        reach(site, "alone", 8, attempt=2)
        left = [one.pid for one in workers() if (one.uid, one.attempt) == (uid_of(site, "alone"), 1)]
        assert left, "what the cut node runs goes on"
        let(site, "alone", 16, attempt=1)  # the copy behind the cut goes ahead, and tries to publish
        status = finish(site, "pair", undisturbed)
        assert (status["attempt"], status["restarts"]) == (2, 0)
        site.cluster.nodes[1].heal()
        kill9(agent_of(worker(site, "alone", 0)))
        let(site, "alone", 10, attempt=3)
        reach(site, "alone", 10, attempt=3)
        resumed = RESUMED.search(site.log(worker(site, "alone", 0)["metadata"]["name"]))
        assert resumed is not None
        assert int(resumed[1]) == 8, "from what the newest attempt saved, and not from the one behind the cut"
        let(site, "alone", STEPS, attempt=3)
        status = finish(site, "alone", undisturbed)
        assert (status["attempt"], status["restarts"]) == (3, 0)


@pytest.mark.soak
def test_an_elastic_job_grows_and_shrinks_with_the_room_there_is(site: Any, undisturbed: float) -> None:
    """One to three nodes: room for two, then for three, then a worker is killed, then a node dies."""
    for node in ("n0", "n1"):  # leaves each node four of eight GPUs
        pods.create(site.cluster.api, site.namespace, pods.pod(f"taken-{node}", ["sleep", "900"], node=node, gpus=4))
        pods.wait_for_phase(site.cluster.api, site.namespace, f"taken-{node}", "Running")
    site.queue(gpus=8)
    size = {"numNodes": 2, "gpusPerNode": 4, "procsPerNode": 1, "elastic": {"minNodes": 1, "maxNodes": 3}}
    site.job("stretchy", COMMAND, maxRestarts=0, lifecycle=QUICK, **size)
    with watched(site, "stretchy"):
        let(site, "stretchy", 4)
        reach(site, "stretchy", 4)
        status = site.wait("stretchy", lambda now: now.get("nodes") == 2 and now["phase"] == "Running")
        assert (status["workers"]["desired"], world(site, "stretchy")) == (3, 2)
        site.cluster.api.delete(f"/api/v1/namespaces/{site.namespace}/pods/taken-n0", grace_seconds=0)
        until(site, "stretchy", "three train", lambda: world(site, "stretchy") == 3)
        let(site, "stretchy", 8)
        reach(site, "stretchy", 8)
        kill9(agent_of(worker(site, "stretchy", 0)))
        until(site, "stretchy", "it is replaced", lambda: worker_count(site, "stretchy") == (4, 3))
        let(site, "stretchy", 12)
        reach(site, "stretchy", 12)
        assert site.status("stretchy")["attempt"] == 1, "it grew, and replaced a worker, in place"
        site.cluster.nodes[1].die()
        until(site, "stretchy", "a new attempt", lambda: site.status("stretchy")["attempt"] == 2)
        until(site, "stretchy", "two train on", lambda: world(site, "stretchy") == 2)
        status = finish(site, "stretchy", undisturbed)
        assert (status["attempt"], status["restarts"], status["nodes"]) == (2, 0, 2)
        site.cluster.nodes[1].revive()


def worker_count(site: Any, name: str) -> tuple[int, int]:
    """Workers ever created in this attempt, and those that train."""
    return len(site.pods(name)), world(site, name)


# ---- the full count: make soak


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_one_job_survives_fifty_deaths_of_the_operator(site: Any, undisturbed: float) -> None:
    """At random moments, each tenth while a new attempt is being brought up."""
    seed = random.randrange(10**6)
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    site.queue(gpus=8)
    site.job("steady", COMMAND, numNodes=2, gpusPerNode=5, procsPerNode=1, maxRestarts=0, lifecycle=QUICK)
    began = time.monotonic()
    with watched(site, "steady") as watcher:
        let(site, "steady", 2)
        for death in range(50):
            if death % 10 == 5:
                let(site, "steady", 2 + death // 2)
                reach(site, "steady", 2 + death // 2, attempt=1 + death // 10)
                kill9(agent_of(worker(site, "steady", chance.randrange(2))))
            time.sleep(chance.uniform(0.1, 3.0))
            site.kill_operator()
            site.start_operator()
        status = finish(site, "steady", undisturbed)
    seconds = time.monotonic() - began
    print(f"50 deaths in {seconds:.0f} s, {status['attempt']} attempts, {watcher.looks} looks", flush=True)
    assert (status["attempt"], status["restarts"]) == (6, 0)
    assert "Traceback" not in site.operator_log()
