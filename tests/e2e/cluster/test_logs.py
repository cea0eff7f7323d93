"""Following a job's log while the connection to the cluster breaks."""

from __future__ import annotations

import sys

import pytest

from cluster_engine import OnCluster
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
