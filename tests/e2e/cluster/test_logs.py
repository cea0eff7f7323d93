"""Following a job's log while the connection to the cluster breaks."""

from __future__ import annotations

import signal
import sys

import pytest

from cluster_engine import OnCluster
from engine_contract import reason_of
from orchestra.api.engine import LogQuery
from orchestra.cluster.engine import KubernetesEngine
from orchestra.kube.config import load_kubeconfig

pytestmark = pytest.mark.timeout(600)
COUNTS = "import time\nfor number in range(120):\n    print(number, flush=True)\n    time.sleep(0.05)"


def test_no_line_is_lost_or_shown_twice_while_the_connection_breaks(site: OnCluster) -> None:
    proxy = site.cluster.control_plane.proxy()
    engine = KubernetesEngine(load_kubeconfig(proxy.kubeconfig_for(site.kubeconfig)), namespace=site.namespace)
    site.submit("counter", [sys.executable, "-c", COUNTS], launcher="none", numNodes=2)
    seen: dict[int | None, list[str]] = {0: [], 1: []}
    lines = engine.logs("counter", LogQuery(follow=True, ranks=[0, 1]))
    for number, line in enumerate(lines, start=1):
        seen[line.rank].append(line.text)
        if number % 60 == 0:
            proxy.reset_connections()
    assert seen == {rank: [str(number) for number in range(120)] for rank in (0, 1)}
    assert [line.text for line in engine.logs("counter", LogQuery(ranks=[1], tail=2))] == ["118", "119"]
    engine.close()
    proxy.close()


def test_an_interrupt_ends_the_follower_quietly_and_not_the_job(site: OnCluster) -> None:
    site.submit(
        "sleeper", [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(900)"], launcher="none"
    )
    following = site.start("logs", "-f", "sleeper", "--rank", "0", "-n", site.namespace)
    assert following.stdout is not None
    assert following.stdout.readline() == "[r0] up\n"
    following.send_signal(signal.SIGINT)
    _, complaint = following.communicate(timeout=60)
    assert (following.returncode, complaint.strip()) == (130, "")
    site.engine.cancel("sleeper")
    assert reason_of(site.rest("sleeper")) == "Cancelled"
    assert "[r0] up" in site.log("sleeper"), "a cancelled job keeps its log"
