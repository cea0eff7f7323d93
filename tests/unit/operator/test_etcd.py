"""Old jobs that meet by etcd-v2 get an etcd, and are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import a_job, a_queue
from operator_parts import NOW, UID, seen
from orchestra.api.base import to_builtins
from orchestra.kube.objects import Metadata
from orchestra.operator.attempt import plan_attempt, pod_children
from orchestra.operator.decide import decide
from orchestra.operator.pods import PodOptions

OLD: dict[str, Any] = {"distributed": {"rdzvBackend": "etcd-v2"}}


def pods(made: Any) -> dict[str, Any]:
    children = pod_children(
        made, Metadata(name="job", namespace="ns", uid=UID), 1, options=PodOptions(etcd_image="e:1")
    )
    return {child.key.name: to_builtins(child.body) for child in children}


@pytest.mark.parametrize("gpus", [8, 16])
def test_an_etcd_of_the_jobs_own_where_nobody_names_one(gpus: int) -> None:
    made = plan_attempt(a_queue(), a_job(numGPUs=gpus, **OLD), UID, 1)
    store = pods(made)["job-rdzv"]
    (container,) = store["spec"]["containers"]
    assert container["image"] == "e:1"
    assert "--enable-v2" in container["command"]
    assert "nvidia.com/gpu" not in str(container["resources"])
    assert "--rdzv-endpoint=job-rdzv.job:2379" in made.nodes[0].argv
    assert "--rdzv-backend=etcd-v2" in made.nodes[0].argv


def test_the_jobs_endpoint_comes_before_the_queues_and_that_before_the_operators() -> None:
    def endpoint(queue: dict[str, Any], job: dict[str, Any], operator: str | None = "op:1") -> str:
        made = plan_attempt(a_queue(distributed=queue), a_job(numGPUs=16, distributed=job), UID, 1, operator)
        assert "job-rdzv" not in pods(made), "no etcd of its own"
        return made.rendezvous.store

    old = OLD["distributed"]
    assert endpoint(old, {}) == "op:1"
    assert endpoint({**old, "rdzvEndpoint": "q:1"}, {}) == "q:1"
    assert endpoint({**old, "rdzvEndpoint": "q:1"}, {"rdzvEndpoint": "j:1"}) == "j:1"
    made = plan_attempt(a_queue(), a_job(numGPUs=16), UID, 1, "op:1")
    assert made.rendezvous.store == "job-rdzv.job:29500", "the operator's etcd is not for c10d"


def test_it_is_told_to_be_old() -> None:
    old = a_job(numGPUs=16, **OLD)
    said = [c for c in decide(seen(old), NOW).status.conditions if c.type == "Deprecated"]
    assert said[0].reason == "EtcdV2"
    assert not [c for c in decide(seen(a_job(numGPUs=16)), NOW).status.conditions if c.type == "Deprecated"]
    assert replace(seen(old), born="x").born == "x"
