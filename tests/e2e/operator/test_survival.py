"""Whatever is killed, the job ends with the loss of a run that nothing happened to.

Each job trains only as far as the test lets it (a number in a file of its output folder), so that no fault comes too
early or too late, however slow the machine is. Each is watched: never do two copies of a worker live within one
attempt, and nothing is left at the end.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from living_workers import Watcher, agent_of, kill9, ranks_of, workers
from testbed import pods
from testbed.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.soak, pytest.mark.timeout(1800)]

Json = dict[str, Any]
SLOW = 240.0
STEPS = 32
LOSS = re.compile(r"\[DONE\] steps=(\d+) loss=([0-9.]+)")
RESUMED = re.compile(r"\[TRAIN\] resumed after step (\d+)")
AGENT_PORT = 29599
OPTIONS = ["--samples", "3072", "--batch", "192", "--epochs", "2", "--checkpoint-every", "2"]
GATED = """
import os, sys, time
from pathlib import Path
from orchestra.train.options import parse
from orchestra.train.smoke.options import Options
from orchestra.train.smoke.training import Trainer

folder, attempt = Path(os.environ["ORCHESTRA_OUTPUT_DIR"]), os.environ["ORCHESTRA_ATTEMPT"]

def allowed():
    for name in ("gate-" + attempt, "gate"):
        try:
            return int((folder / name).read_text())
        except (OSError, ValueError):
            continue
    return 0

class Gated(Trainer):
    def _optimize(self, *batch):
        while self.step >= allowed():
            time.sleep(0.05)
        return super()._optimize(*batch)

Gated(parse(Options, sys.argv[1:], program="gated")).run()
"""
QUICK = {"nodeLostSeconds": 5, "gracePeriodSeconds": 5}
COMMAND = ["python", "-c", GATED, *OPTIONS]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The final loss when nothing happens: one process, on this machine, without any engine."""
    out = tmp_path_factory.mktemp("undisturbed")
    words = [sys.executable, "-m", "orchestra.train.smoke", *OPTIONS, "--output-dir", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(LOSS.findall(done.stdout)[-1][1])


# ---- what a test sees and does


def uid_of(site: Any, name: str) -> str:
    return str(site.cluster.api.get(site.path("torchrunjob", name))["metadata"]["uid"])


def report(pod: Json) -> Json:
    """What a worker's agent says; nothing while it cannot be reached."""
    address = pod["status"].get("podIP")
    if not address or pod["status"]["phase"] != "Running":
        return {}
    with (
        contextlib.suppress(OSError, ValueError),
        urllib.request.urlopen(f"http://{address}:{AGENT_PORT}/progress", timeout=2) as answer,
    ):
        found: Json = json.load(answer)
        return found
    return {}


def step(site: Any, name: str, attempt: int = 0) -> int:
    """The highest step that any worker of the newest attempt reports; -1 before the first."""
    here = site.pods(name)
    newest = max([attempt, *(number(pod) for pod in here)])
    reports = [report(pod) for pod in here if number(pod) == newest]
    return max((one["progress"].get("step") or 0 for one in reports if one.get("progress")), default=-1)


def number(pod: Json) -> int:
    return int(pod["metadata"]["labels"]["torchrun.ai/attempt"])


def world(site: Any, name: str) -> int:
    """How many workers train together, as their agents tell it."""
    return sum(
        any(rank["state"] == "running" for rank in report(pod).get("ranks", {}).values()) for pod in site.pods(name)
    )


def reach(site: Any, name: str, least: int, attempt: int = 0) -> None:
    until(site, name, f"step {least}", lambda: step(site, name, attempt) >= least)


def until(site: Any, name: str, what: str, condition: Callable[[], object]) -> None:
    """Wait for it while the job lives: one that has failed says why at once."""

    def holds() -> object:
        said = site.status(name)
        assert said.get("phase") != "Failed", f"{said}\n{site.operator_log()[-4000:]}"
        return condition()

    wait_until(f"{name}: {what}", holds, timeout=SLOW, interval=0.3)


def let(site: Any, name: str, step: int, attempt: int | None = None) -> None:
    """Let the job (or one attempt of it) train up to this step."""
    file = folder_of(site, name) / ("gate" if attempt is None else f"gate-{attempt}")
    draft = file.with_suffix(".draft")
    draft.write_text(str(step))
    draft.rename(file)


def folder_of(site: Any, name: str) -> Path:
    """The job's output folder, on this machine."""
    claim = f"/api/v1/namespaces/{site.namespace}/persistentvolumeclaims/{name}-checkpoints"
    bound = lambda: (site.cluster.api.find(claim) or {"spec": {}})["spec"].get("volumeName")  # noqa: E731
    volume = wait_until(f"the claim of {name}", bound, timeout=SLOW)
    return Path(site.cluster.api.get(f"/api/v1/persistentvolumes/{volume}")["spec"]["hostPath"]["path"])


def worker(site: Any, name: str, index: int) -> Json:
    """The newest worker of this index."""
    here = [pod for pod in site.pods(name) if pod["metadata"]["labels"]["torchrun-node-index"] == str(index)]
    return max(here, key=number)


def finish(site: Any, name: str, expected: float) -> Json:
    let(site, name, STEPS)
    status: Json = site.phase(name, "Succeeded", "Failed", timeout=SLOW)
    assert status["phase"] == "Succeeded", f"{status}\n{site.operator_log()[-4000:]}"
    found = [LOSS.search(site.log(pod["metadata"]["name"])) for pod in site.pods(name)]
    steps, loss = next((int(one[1]), float(one[2])) for one in found if one)
    assert steps == STEPS
    assert loss == pytest.approx(expected, abs=1e-4)
    return status


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


def test_one_job_survives_the_death_of_everything_in_turn(site: Any, undisturbed: float) -> None:
    """A rank, the operator, an agent, worker 0, worker 1, the API server, a kubelet."""
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
        site.kill_operator()
        kill9(agent_of(worker(site, "tough", 1)))
        let(site, "tough", 6)
        site.start_operator()
        for _ in range(2):  # at random, while it brings up the next attempt
            time.sleep(chance.uniform(0.5, 2.5))
            site.kill_operator()
            site.start_operator()
        reach(site, "tough", 6, attempt=2)
        for attempt, index in ((2, 0), (3, 1)):
            pod = worker(site, "tough", index)["metadata"]["name"]
            # Its own gate, and a step more than the last one could save: else it would resume there, and say nothing.
            let(site, "tough", 4 + 2 * attempt, attempt=attempt + 1)
            site.cluster.api.delete(f"/api/v1/namespaces/{site.namespace}/pods/{pod}", grace_seconds=0)
            reach(site, "tough", 4 + 2 * attempt, attempt=attempt + 1)
        site.cluster.control_plane.api_server.kill9()
        site.cluster.control_plane.api_server.restart()
        node = site.cluster.nodes[1]
        node.kill_kubelet()
        trains_on_without_its_kubelet(site, "tough", node.name, seconds=13, attempt=4)
        assert site.status("tough")["attempt"] == 4
        node.revive()
        let(site, "tough", STEPS, attempt=4)
        status = finish(site, "tough", undisturbed)
        assert status["attempt"] == 4
        assert status["restarts"] <= 1, "only the rank's death was the job's own, and its count died with its agent"


def trains_on_without_its_kubelet(site: Any, name: str, node: str, seconds: float, attempt: int) -> None:
    """The node is not ready for longer than `nodeLostSeconds`, but its ranks make a step now and then."""
    allowed = step(site, name)
    site.cluster.wait_for_node(node, ready=False)
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        allowed = min(allowed + 1, STEPS - 1)
        let(site, name, allowed, attempt=attempt)
        time.sleep(1.0)


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
