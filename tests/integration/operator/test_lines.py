"""Where no scheduler keeps a queue's limit, the operator does: on a real API server, under its generated Role."""

from __future__ import annotations

import pytest

from operator_on_plane import Operator, Site, condition, path
from testbed.waiting import wait_until


@pytest.fixture
def site(running: Operator, namespace: str) -> Site:
    return Site(running, namespace)


def test_jobs_above_the_limit_wait_in_line_and_the_head_starts_when_one_ends(site: Site) -> None:
    site.queue(resources={"gpu": {"limit": 16}})
    site.queue("idle")
    site.condition("torchrunqueue", "idle", "Ready", "True")
    idle = site.admin.get(path("torchrunqueue", site.namespace, "idle"))["metadata"]["resourceVersion"]
    site.job("a-first", 8)
    site.phase("a-first", "Provisioning")
    site.job("b-second", 8)
    site.phase("b-second", "Provisioning")
    site.job("c-third", 16)
    waits = condition(site.phase("c-third", "Queued"), "Phase")
    assert waits["reason"] == "QueueLimit"
    assert waits["message"] == "first in the line of queue queue: wants 16 GPUs, 16 of 16 GPUs are in use"
    site.job("d-fourth", 1)
    site.until(
        "torchrunjob", "d-fourth", lambda status: "ahead: c-third" in condition(status, "Phase").get("message", "")
    )
    site.job("huge", 64)
    never = condition(site.phase("huge", "Queued"), "Phase")
    assert never["reason"] == "NeverFits"
    assert "64 GPUs" in never["message"]
    assert not site.pods("c-third")
    site.operator.kill()  # and the line is found again from the objects
    site.operator.start()
    site.finish("a-first")
    site.phase("a-first", "Succeeded")
    site.until("torchrunjob", "c-third", lambda status: "8 of 16 GPUs" in condition(status, "Phase").get("message", ""))
    assert site.status("torchrunjob", "d-fourth")["phase"] == "Queued", "8 GPUs are free, but they are the head's"
    site.finish("b-second")
    site.phase("c-third", "Provisioning")
    site.admin.delete(path("torchrunjob", site.namespace, "c-third"))
    site.phase("d-fourth", "Provisioning")
    after = site.admin.get(path("torchrunqueue", site.namespace, "idle"))["metadata"]["resourceVersion"]
    assert after == idle, "a new operator writes nothing about what did not change"


def test_a_higher_priority_goes_first_and_a_raised_limit_wakes_the_line(site: Site) -> None:
    name = f"urgent-{site.namespace}"
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    site.admin.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    site.queue(resources={"gpu": {"limit": 8}})
    site.job("runs", 8)
    site.phase("runs", "Provisioning")
    site.job("a-patient", 8)
    site.phase("a-patient", "Queued")
    site.job("urgent", 8, overrides={"priorityClassName": name})
    first = site.phase("urgent", "Queued")
    assert condition(first, "Phase")["message"].startswith("first in the line")
    site.until("torchrunjob", "a-patient", lambda status: "ahead: urgent" in condition(status, "Phase")["message"])
    site.finish("runs")
    site.phase("urgent", "Provisioning")
    assert site.status("torchrunjob", "a-patient")["phase"] == "Queued"
    site.admin.patch(path("torchrunqueue", site.namespace, "queue"), {"spec": {"resources": {"gpu": {"limit": 16}}}})
    site.phase("a-patient", "Provisioning")
    site.admin.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


def test_a_burst_never_passes_the_limit(site: Site) -> None:
    """All at once, so that the operator decides faster than its own cache follows."""
    site.queue(resources={"gpu": {"limit": 8}, "cpu": {"limit": 32}})
    for number in range(12):
        site.job(f"j{number:02}", 2)
    left = {f"j{number:02}" for number in range(12)}
    while left:
        phases = {name: site.status("torchrunjob", name).get("phase") for name in sorted(left)}
        holding = [name for name, phase in phases.items() if phase == "Provisioning"]
        with_pods = [name for name in sorted(left) if site.pods(name)]
        assert len(with_pods) <= 2, "each takes 16 of the 32 CPUs"
        if not holding:
            wait_until(
                "somebody starts",
                lambda: any(site.status("torchrunjob", n).get("phase") == "Provisioning" for n in left),
            )
            continue
        site.finish(holding[0])
        site.phase(holding[0], "Succeeded")
        left.discard(holding[0])
