"""Two real operators and one lease: the leader freezes, the other acts, and nothing is done twice."""

from __future__ import annotations

import collections
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from operator_on_plane import PATIENCE, Operator, Site, install
from testbed.api import Json
from testbed.control_plane_options import ControlPlaneOptions
from testbed.pytest_plugin import ControlPlanes
from testbed.waiting import wait_until

_LEASE = "/apis/coordination.k8s.io/v1/namespaces/orchestra-system/leases/orchestra-operator"
_FROZEN_SECONDS = 20.0  # longer than a lease lasts


def test_a_frozen_leader_is_replaced_and_nothing_is_done_twice(control_planes: ControlPlanes, tmp_path: Path) -> None:
    plane = control_planes(ControlPlaneOptions(audit=True))
    install(plane)
    operators = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        operators.append(Operator(plane, tmp_path / name, "--lease-namespace", "orchestra-system"))
    one, two = operators

    def leader() -> str:
        lease = plane.admin.find(_LEASE)
        return str(lease["spec"].get("holderIdentity") or "") if lease else ""

    try:
        one.start()
        wait_until("one leads", lambda: leader().endswith(f"-{one.pid}"), timeout=PATIENCE)
        two.start()
        with plane.namespace() as namespace:
            site = Site(one, namespace)
            site.queue()
            site.job("first", 16)
            site.condition("torchrunjob", "first", "Created", "True")

            os.kill(one.pid, signal.SIGSTOP)
            frozen = time.monotonic()
            victim = site.pods("first")[0]["metadata"]["name"]
            plane.admin.delete(f"/api/v1/namespaces/{namespace}/pods/{victim}", grace_seconds=0)
            site.job("second", 16)
            wait_until("two acts", lambda: len(site.pods("second")) == 2, timeout=PATIENCE)
            assert leader().endswith(f"-{two.pid}")
            site.until("torchrunjob", "first", lambda status: status.get("attempt") == 2)
            wait_until("frozen long enough", lambda: time.monotonic() - frozen > _FROZEN_SECONDS, timeout=PATIENCE)

            os.kill(one.pid, signal.SIGCONT)
            wait_until("the old leader ends", lambda: not one.running, timeout=PATIENCE)
            assert one.exit_code != 0
            assert "LeadershipLost" in one.log()
            site.job("third", 16)
            wait_until("two goes on", lambda: len(site.pods("third")) == 2, timeout=PATIENCE)
            assert two.running
            assert [site.status("torchrunjob", name)["attempt"] for name in ("first", "second", "third")] == [2, 1, 1]

            made = collections.Counter(created_pods(plane.audit_events(), namespace))
            assert len(made) == 4 * 3, "two workers and a store, of four attempts"
            assert set(made.values()) == {1}
    finally:
        for operator in operators:
            operator.kill()


def created_pods(events: list[Json], namespace: str) -> Iterator[str]:
    """Names of the pods that were really created, once for each time."""
    for event in events:
        what = event.get("objectRef", {})
        asked = (event["verb"], what.get("resource"), what.get("namespace"), what.get("subresource"))
        done = event.get("responseStatus", {}).get("code") == 201 and event["stage"] == "ResponseComplete"
        if asked == ("create", "pods", namespace, None) and done and "dryRun" not in event["requestURI"]:
            yield str(what["name"])
