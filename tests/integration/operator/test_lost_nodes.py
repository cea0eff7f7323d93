"""Nodes that fall silent, on a control plane without machines: the test plays kubelets and agents."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from operator_desk import OURS
from operator_on_plane import PATIENCE, Operator, Site
from testbed.api import Json
from testbed.fake_nodes import FakeNode, set_pod_phase
from testbed.waiting import wait_until

AGENT = ("127.0.0.29", 29599)
QUICK = {"nodeLostSeconds": 5}


@pytest.fixture
def site(running: Operator, namespace: str) -> Site:
    made = Site(running, namespace)
    made.queue(scheduling={"nodeSelector": dict(OURS)}, nodeResources={"gpus": 8, "memory": "16Gi"})
    return made


class Agent:
    """Answers as a worker's agent does."""

    def __init__(self) -> None:
        self.step, self.since = 1, time.monotonic()
        self.asked = 0

    def makes_a_step(self) -> None:
        self.step, self.since = self.step + 1, time.monotonic()

    def report(self) -> Json:
        self.asked += 1
        quiet = time.monotonic() - self.since
        rank = {"state": "running", "quietSeconds": quiet, "progress": {"step": self.step, "phase": "train"}}
        return {"state": "running", "ranks": {"0": rank}, "progress": rank["progress"]}


@contextlib.contextmanager
def agent() -> Iterator[Agent]:
    """At an address of its own on this machine."""
    made = Agent()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(made.report()).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(AGENT, Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


def all_pods(site: Site) -> list[Json]:
    found: list[Json] = site.admin.get(f"/api/v1/namespaces/{site.namespace}/pods")["items"]
    return found


def run(site: Site, name: str, count: int) -> None:
    """Play the kubelets: whatever was placed runs."""

    def placed() -> bool:
        return len(all_pods(site)) == count and all(pod["spec"].get("nodeName") for pod in all_pods(site))

    wait_until(f"{name} is placed", placed, timeout=PATIENCE, interval=0.1)
    for pod in all_pods(site):
        set_pod_phase(site.admin, site.namespace, pod["metadata"]["name"], "Running")
    site.phase(name, "Running")


def test_a_lost_node_holds_no_job_up_and_what_may_still_live_elsewhere_does(
    site: Site, two_nodes: list[FakeNode]
) -> None:
    site.job("lost", 16, maxRestarts=0, lifecycle=QUICK)
    run(site, "lost", 3)
    two_nodes[1].set_ready(None)
    site.until("torchrunjob", "lost", lambda status: (status.get("failure") or {}).get("reason") == "NodeLost")
    waits = site.until("torchrunjob", "lost", lambda status: "WaitingForOldPods" in str(status.get("conditions")))
    assert waits["attempt"] == 1, "what was deleted on a node that is well may still be alive"
    for pod in all_pods(site):
        if pod["spec"]["nodeName"] == two_nodes[0].name:  # its kubelet has ended it
            site.admin.delete(f"/api/v1/namespaces/{site.namespace}/pods/{pod['metadata']['name']}", grace_seconds=0)
    status = site.until("torchrunjob", "lost", lambda status: status.get("attempt") == 2)
    assert status["restarts"] == 0
    stuck = [pod for pod in all_pods(site) if pod["spec"].get("nodeName") == two_nodes[1].name]
    assert stuck
    assert all(pod["metadata"].get("deletionTimestamp") for pod in stuck), "its kubelet ends them when it is back"
    wait_until("the new attempt's pods", lambda: len(all_pods(site)) == 3 + len(stuck), timeout=PATIENCE)


def test_a_node_that_is_not_ready_but_trains_is_left_alone_until_it_stands_still(
    site: Site, two_nodes: list[FakeNode]
) -> None:
    two_nodes[0].delete()
    site.job("trains", 8, maxRestarts=0, lifecycle=QUICK)
    with agent() as worker:
        run(site, "trains", 1)
        address = {"status": {"podIP": AGENT[0], "podIPs": [{"ip": AGENT[0]}]}}
        site.admin.patch(f"/api/v1/namespaces/{site.namespace}/pods/trains-0/status", address)
        two_nodes[1].set_ready(None)
        before, began = worker.asked, time.monotonic()
        while time.monotonic() - began < 12 or worker.asked - before < 5:
            assert time.monotonic() - began < PATIENCE, "nobody asks"
            worker.makes_a_step()
            time.sleep(0.5)
        status = site.status("torchrunjob", "trains")
        assert (status["phase"], status["attempt"], status.get("failure")) == ("Running", 1, None)
        # it answers still, but makes no step any more
        site.until("torchrunjob", "trains", lambda status: (status.get("failure") or {}).get("reason") == "NodeLost")
        assert site.until("torchrunjob", "trains", lambda status: status.get("attempt") == 2)["restarts"] == 0
