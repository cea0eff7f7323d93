"""A kept plan is the plan that would be made anew."""

from __future__ import annotations

import msgspec

from orchestra.api.job import RestartBudget, TorchrunJob, TorchrunJobSpec, TorchrunJobStatus
from orchestra.api.kubernetes import ObjectMeta
from orchestra.kube.objects import Metadata
from orchestra.operator.attempt import plan_attempt
from orchestra.operator.kinds import QueueObject
from orchestra.operator.plans import Plans


def queue(gpus: int = 8, generation: int = 1) -> QueueObject:
    spec = msgspec.json.encode({"image": "example/train:1", "nodeResources": {"gpus": gpus}})
    meta = Metadata(name="queue", namespace="home", uid="queue-uid", generation=generation)
    return QueueObject(metadata=meta, spec=msgspec.Raw(spec))


def job(uid: str = "job-uid", nodes: int = 2, generation: int = 1, spent: int | None = None) -> TorchrunJob:
    budget = RestartBudget(spent=spent) if spent is not None else None
    return TorchrunJob(
        metadata=ObjectMeta(name="train", namespace="home", uid=uid, generation=generation),
        spec=TorchrunJobSpec(job_queue="queue", command="python train.py", num_nodes=nodes, gpus_per_node=8),
        status=TorchrunJobStatus(budget=budget),
    )


def test_a_plan_is_kept_until_anything_it_is_made_of_changes() -> None:
    plans = Plans()
    first = plans.attempt(queue(), job(), "job-uid", 1)
    assert plans.attempt(queue(), job(), "job-uid", 1) is first
    others = [
        (queue(), job(), 2),
        (queue(), job(spent=1), 1),
        (queue(), job(nodes=4, generation=2), 1),
        (queue(gpus=16, generation=2), job(), 1),
    ]
    for found, asked, attempt in others:
        made = plans.attempt(found, asked, "job-uid", attempt)
        assert made is not first
        assert made == plan_attempt(plans.queue(found), asked, "job-uid", attempt)


def test_large_plans_push_older_ones_out() -> None:
    plans = Plans()
    first = plans.attempt(queue(), job(), "job-uid", 1)
    for number in range(9):
        plans.attempt(queue(), job(uid=f"large-{number}", nodes=512), f"large-{number}", 1)
    again = plans.attempt(queue(), job(), "job-uid", 1)
    assert again == first
    assert again is not first
