"""All or nothing: what keeps an attempt from starting leaves no half of it behind."""

from __future__ import annotations

import pytest

from operator_desk import OURS, Desk
from operator_on_plane import Operator
from testbed.api import Json
from testbed.fake_nodes import FakeNode
from testbed.waiting import wait_until


def quota(desk: Desk, **hard: str) -> None:
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}, "spec": {"hard": hard}}
    desk.api.apply(desk.core("resourcequotas", "tight"), body)
    wait_until("the quota is counted", lambda: desk.items("resourcequotas")[0].get("status", {}).get("hard") == hard)


def test_a_quota_one_pod_too_small_leaves_no_half_gang_and_says_so(desk: Desk) -> None:
    quota(desk, pods="2")  # two workers and their store are three
    desk.queue()
    desk.job()
    said = desk.condition("Phase", reason="QuotaExceeded")
    assert said["message"] == "quota tight: pods: the job needs 3, 0 of 2 are used; it can never fit"
    status = desk.status()
    assert (status["phase"], status.get("attempt", 0)) == ("Queued", 0)
    assert desk.names("pods") == []
    quota(desk, pods="3")
    status = desk.wait(lambda status: status.get("phase") == "Provisioning")
    assert status["attempt"] == 1
    wait_until("all pods are there", lambda: desk.names("pods") == ["job-0", "job-1", "job-rdzv"])


def test_what_only_the_server_can_know_takes_back_the_pods_that_were_made(desk: Desk) -> None:
    limits = [{"type": "Container", "defaultRequest": {"cpu": "1"}, "default": {"cpu": "1"}}]
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "usual"}, "spec": {"limits": limits}}
    desk.api.create(desk.core("limitranges"), body)
    quota(desk, **{"requests.cpu": "1500m"})  # one worker and the store fit, as nobody but the server knows
    desk.queue()
    desk.job()
    said = desk.condition("Phase", reason="QuotaExceeded")
    assert "exceeded quota: tight" in said["message"]
    status = desk.status()
    assert (status["phase"], status["attempt"]) == ("Queued", 1)
    assert status["budget"]["notBefore"], "it does not try again at once"
    made = [pod for pod in desk.items("pods") if not pod["metadata"].get("deletionTimestamp")]
    assert made == []


def test_a_pod_that_admission_refuses_is_never_made(desk: Desk) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    desk.api.patch(f"/api/v1/namespaces/{desk.namespace}", {"metadata": {"labels": labels}})
    desk.queue()
    desk.job()
    said = desk.condition("Phase", reason="PodSecurity")
    assert 'violates PodSecurity "restricted' in said["message"]
    assert (desk.status()["phase"], desk.names("pods")) == ("Queued", [])


def test_a_name_that_is_taken_is_said_and_left_alone(desk: Desk) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "job-checkpoints"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    before = desk.api.create(desk.core("persistentvolumeclaims"), claim)
    service = {"metadata": {"name": "job"}, "spec": {"clusterIP": "None"}}
    desk.api.create(desk.core("services"), {"apiVersion": "v1", "kind": "Service", **service})
    desk.queue(storage={"checkpoints": {"sizePerGPU": "1Gi"}})
    desk.job()
    said = desk.condition("Phase", reason="NameTaken")
    assert "exists and does not belong" in said["message"]
    assert desk.names("pods") == []
    desk.api.delete(desk.path("torchrunjob", "job"))
    after = desk.api.get(desk.core("persistentvolumeclaims", "job-checkpoints"))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


@pytest.mark.parametrize(
    ("queue", "kind", "mend"),
    [
        ({"kaiQueue": "team"}, "PodGroup of scheduling.run.ai/v2alpha2", "install KAI"),
        ({"scheduling": {"gang": "coscheduling"}}, "PodGroup of scheduling.x-k8s.io/v1alpha1", "install coscheduling"),
    ],
)
def test_a_gang_scheduler_that_is_not_there_is_told_and_fills_no_log(
    desk: Desk, running: Operator, queue: Json, kind: str, mend: str
) -> None:
    before = len(running.log().splitlines())
    desk.queue(**queue)
    desk.job()
    said = desk.condition("Phase", reason="GangSchedulerMissing")
    assert f"this cluster does not serve {kind}: {mend}" in said["message"]
    status = desk.status()
    assert (status["phase"], status.get("attempt", 0), desk.names("pods")) == ("Queued", 0, [])
    desk.api.patch(desk.path("torchrunjob", "job"), {"spec": {"maxRestarts": 7}})  # it is looked at again
    desk.wait(lambda status: status["observedGeneration"] == 2)
    said_by_operator = running.log().splitlines()[before:]
    assert [line for line in said_by_operator if "WARNING" in line or "ERROR" in line or "Traceback" in line] == []


def test_two_gangs_that_hold_half_of_what_they_need_both_run_in_the_end(desk: Desk, two_nodes: list[FakeNode]) -> None:
    mine = {"key": "late", "operator": "Exists"}
    taint = [{"key": "late", "value": "x", "effect": "NoSchedule"}]
    desk.api.patch(two_nodes[1].path, {"spec": {"taints": taint}})
    desk.queue(scheduling={"nodeSelector": OURS})
    patient = {"gangTimeoutSeconds": 600}
    desk.job("older", gpusPerNode=8, lifecycle=patient)
    desk.condition("Scheduled", "older", reason="HalfGang")
    desk.job("younger", gpusPerNode=8, lifecycle=patient, overrides={"tolerations": [mine]})
    desk.condition("Scheduled", "younger", reason="HalfGang")
    desk.api.patch(two_nodes[1].path, {"spec": {"taints": None}})  # each holds one node, and wants the other's
    for name in ("older", "younger"):
        desk.api.patch(desk.path("torchrunjob", name), {"spec": {"lifecycle": {"gangTimeoutSeconds": 2}}})

    def both_finished(_: object) -> bool:
        desk.bury()
        statuses = {name: desk.status(name) for name in ("older", "younger")}
        for name, status in statuses.items():  # whoever comes first
            placed = any(c["type"] == "Scheduled" and c["status"] == "True" for c in status["conditions"])
            if placed and status["phase"] != "Succeeded":
                desk.play("Succeeded", name)
        return all(status["phase"] == "Succeeded" for status in statuses.values())

    status = desk.wait(both_finished, "younger")
    assert status.get("budget", {}).get("freeRetries", 0) == 0


def test_a_command_changed_while_it_runs_is_not_taken_even_by_the_next_attempt(desk: Desk) -> None:
    desk.queue()
    desk.job(numNodes=1, command="python first.py")
    wait_until("its pod is there", lambda: desk.names("pods") == ["job-0"])
    desk.play("Running")
    desk.wait(lambda status: status.get("phase") == "Running")
    desk.api.patch(desk.path("torchrunjob", "job"), {"spec": {"command": "python second.py"}})
    said = desk.condition("ChangesTaken", status="False")
    assert "set suspend: true first" in said["message"]
    desk.play("Failed", exit_code=1)
    wait_until("the next attempt", lambda: "job-0-r2" in desk.names("pods"))
    (pod,) = [pod for pod in desk.workers() if pod["metadata"]["name"] == "job-0-r2"]
    assert "first.py" in str(pod["spec"]["containers"])
    assert "second.py" not in str(pod["spec"]["containers"])
