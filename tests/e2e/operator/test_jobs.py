"""TorchrunJobs on two real nodes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from testbed.api import ApiError

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

SMOKE = "python -m orchestra.train.smoke --epochs 2"
LOSS = re.compile(r"\[DONE\] steps=(\d+) loss=([0-9.]+)")


def final(site: Any, name: str) -> tuple[int, float]:
    for pod in site.pods(name):
        found = LOSS.search(site.log(pod["metadata"]["name"]))
        if found:
            return int(found[1]), float(found[2])
    raise AssertionError("no rank said DONE")


def test_a_job_trains_on_two_nodes_to_the_same_loss_as_on_one_machine(site: Any) -> None:
    site.queue()
    site.job("trains", SMOKE)
    status = site.phase("trains", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status
    assert (status["nodes"], status["procsPerNode"], status["gpus"], status["attempt"]) == (2, 1, 2, 1)
    steps, loss = final(site, "trains")
    assert steps == 32
    assert loss == pytest.approx(0.03854496, abs=1e-4)
    assert {pod["spec"]["nodeName"] for pod in site.pods("trains")} <= {"n0", "n1"}
    listed = site.cluster.kubectl("-n", site.namespace, "get", "torchrunjobs").splitlines()
    assert "Succeeded" in listed[1]


def test_a_job_waits_for_its_queue_and_a_failure_names_its_rank(site: Any) -> None:
    script = "import os, time\nif os.environ['RANK'] == '1': raise ValueError('rank one is unwell')\ntime.sleep(60)"
    site.job("patient", ["python", "-c", script], restartPolicy="Never")
    status = site.wait("patient", lambda status: status.get("conditions"))
    assert (status["phase"], status["conditions"][0]["reason"]) == ("Pending", "QueueNotFound")
    assert not site.pods("patient")
    site.queue()
    status = site.phase("patient", "Failed")
    assert (status["failure"]["rank"], status["failure"]["reason"]) == (1, "Exception")
    assert "rank one is unwell" in status["failure"]["message"]


def test_what_cannot_run_is_refused_before_any_child_exists(site: Any) -> None:
    site.queue(gpus=8)
    site.job("uneven", SMOKE, numGPUs=13)
    status = site.wait("uneven", lambda status: status.get("conditions"))
    (valid,) = [c for c in status["conditions"] if c["type"] == "Valid"]
    assert valid["status"] == "False"
    assert "12 and 14" in valid["message"]
    site.job("strange", {"not": "a command"})
    status = site.wait("strange", lambda status: status.get("conditions"))
    assert any(c["type"] == "Valid" and c["status"] == "False" for c in status["conditions"])
    for name in ("uneven", "strange"):
        assert not site.pods(name)
        with pytest.raises(ApiError, match="404"):
            site.cluster.api.get(f"/api/v1/namespaces/{site.namespace}/services/{name}")


def test_a_stranger_of_the_same_name_is_left_alone(site: Any) -> None:
    site.queue()
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "taken"}, "spec": {"clusterIP": "None"}}
    path = f"/api/v1/namespaces/{site.namespace}/services"
    before = site.cluster.api.create(path, service)
    site.job("taken", SMOKE)
    site.wait("taken", lambda status: "exists and does not belong" in str(status.get("conditions")))
    site.cluster.api.delete(site.path("torchrunjob", "taken"))
    assert site.cluster.api.get(f"{path}/taken")["metadata"]["uid"] == before["metadata"]["uid"]
    assert not site.pods("taken")


@pytest.mark.coscheduling
def test_a_gang_that_does_not_fit_binds_nothing_and_says_so(site: Any) -> None:
    plain = {"launcher": "none", "gpusPerNode": 8}
    with site.cluster.using_scheduler("coscheduling"):
        site.queue(gpus=8, scheduling={"gang": "coscheduling"})
        site.job("too-large", ["sleep", "600"], numNodes=3, **plain)
        site.wait("too-large", lambda status: "Unschedulable" in str(status.get("conditions")))
        assert [pod["spec"].get("nodeName") for pod in site.pods("too-large")] == [None, None, None]
        site.cluster.api.delete(site.path("torchrunjob", "too-large"))
        site.job("fits", ["sh", "-c", "echo $NODE_RANK"], numNodes=2, **plain)
        assert site.phase("fits", "Succeeded", "Failed")["phase"] == "Succeeded"


def test_two_gangs_that_need_both_nodes_both_finish_without_a_gang_scheduler(site: Any) -> None:
    """Each holds one node and waits for the other's: the younger gives way, and neither spends a restart."""
    node = "/api/v1/nodes/n1"
    site.cluster.api.patch(node, {"spec": {"taints": [{"key": "late", "value": "x", "effect": "NoSchedule"}]}})
    site.queue(gpus=8)
    plain = {"launcher": "none", "numNodes": 2, "gpusPerNode": 8, "lifecycle": {"gangTimeoutSeconds": 600}}
    half = lambda status: "HalfGang" in str(status.get("conditions"))  # noqa: E731 -- used twice, just here
    try:
        site.job("older", ["sh", "-c", "echo $NODE_RANK"], **plain)
        site.wait("older", half)
        late = {"tolerations": [{"key": "late", "operator": "Exists"}]}
        site.job("younger", ["sh", "-c", "echo $NODE_RANK"], **plain, overrides=late)
        site.wait("younger", half)
    finally:
        site.cluster.api.patch(node, {"spec": {"taints": None}})
    for name in ("older", "younger"):
        site.cluster.api.patch(site.path("torchrunjob", name), {"spec": {"lifecycle": {"gangTimeoutSeconds": 3}}})
    assert site.phase("older", "Succeeded", "Failed")["phase"] == "Succeeded"
    status = site.phase("younger", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded"
    assert status.get("restarts", 0) == 0
    warned = [c for c in status["conditions"] if c["type"] == "GangScheduling"]
    assert (warned[0]["status"], warned[0]["reason"]) == ("False", "NoGangScheduler")
