"""What a queue forbids: refused by the operator with the field and the queue, before anything exists."""

from __future__ import annotations

from typing import Any

import pytest

from operator_on_plane import Operator, Site
from testbed.waiting import wait_until

POD = "overrides.podTemplate.spec"


@pytest.fixture
def site(running: Operator, namespace: str) -> Site:
    return Site(running, namespace)


def pod(**spec: Any) -> dict[str, Any]:
    return {"overrides": {"podTemplate": {"spec": spec}}}


REACHING_OUT: list[tuple[dict[str, Any], str]] = [
    ({"overrides": {"serviceAccountName": "robot"}}, "overrides.serviceAccountName"),
    ({"overrides": {"securityContext": {"privileged": True}}}, "overrides.securityContext"),
    ({"overrides": {"network": {"hostNetwork": True}}}, "overrides.network.hostNetwork"),
    ({"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}, "volumes[0].hostPath"),
    (pod(hostNetwork=True), f"{POD}.hostNetwork"),
    (pod(hostPID=True), f"{POD}.hostPID"),
    (pod(serviceAccountName="robot"), f"{POD}.serviceAccountName"),
    (pod(serviceAccount="robot"), f"{POD}.serviceAccount"),
    (pod(securityContext={"runAsUser": 0}), f"{POD}.securityContext"),
    (pod(volumes=[{"name": "root", "hostPath": {"path": "/"}}]), f"{POD}.volumes[0].hostPath"),
    (pod(containers=[{"name": "trainer", "securityContext": {"privileged": True}}]), "containers[0].securityContext"),
    (pod(initContainers=[{"name": "i", "image": "i", "securityContext": {"privileged": True}}]), "initContainers[0]"),
    (pod(containers=[{"name": "trainer", "ports": [{"containerPort": 1, "hostPort": 1}]}]), "ports.hostPort"),
    ({"annotations": {"container.apparmor.security.beta.kubernetes.io/trainer": "unconfined"}}, "annotations"),
]


def test_what_reaches_beyond_the_pod_is_refused_unless_the_queue_names_it(site: Site) -> None:
    site.queue()
    site.queue("all", overridesAllowed=["*"])
    for number, (spec, _) in enumerate(REACHING_OUT):
        site.job(f"plain-{number}", **spec)
        site.job(f"star-{number}", queue="all", **spec)
    for number, (_, field) in enumerate(REACHING_OUT):
        for kind, queue in (("plain", "queue"), ("star", "all")):
            said = site.condition("torchrunjob", f"{kind}-{number}", "Valid", "False", "Invalid")
            assert field in said["message"]
            assert f"queue {queue} does not let jobs set this" in said["message"]
    pods = site.admin.get(f"/api/v1/namespaces/{site.namespace}/pods")["items"]
    services = site.admin.get(f"/api/v1/namespaces/{site.namespace}/services")["items"]
    assert (pods, services) == ([], [])
    site.queue("host", overridesAllowed=["hostNetwork", "podTemplate"])
    site.job("allowed", queue="host", **pod(hostNetwork=True))
    site.phase("allowed", "Provisioning")
    (worker,) = wait_until("its pod", lambda: site.pods("allowed"), timeout=60)
    assert worker["spec"]["hostNetwork"] is True


def test_a_queue_that_lists_what_may_be_changed_allows_nothing_else(site: Site) -> None:
    site.queue(overridesAllowed=["env"])
    site.job("image", image="other:1")
    said = site.condition("torchrunjob", "image", "Valid", "False", "Invalid")
    assert said["message"] == "spec.image: queue queue does not let jobs set this; it allows env"
    site.job("env", env=[{"name": "A", "value": "1"}])
    site.phase("env", "Provisioning")
