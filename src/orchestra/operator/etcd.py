"""The rendezvous of old jobs: `etcd-v2`. Accepted, told to be old, and given an etcd where none is named."""

from __future__ import annotations

from dataclasses import dataclass

from orchestra.api.job import TorchrunJob
from orchestra.operator import conditions
from orchestra.operator.attempt import ETCD, has_store
from orchestra.plan import Plan
from orchestra.plan.where import ETCD_IMAGE

DEPRECATED = "Deprecated"


@dataclass(frozen=True)
class Etcd:
    """What the operator was told about etcd."""

    endpoint: str | None = None
    """One that all jobs without another use."""
    image: str = ETCD_IMAGE
    """Else each job gets one of its own from this."""


USUAL = Etcd()


def told(job: TorchrunJob, plan: Plan, now: float) -> TorchrunJob:
    """The job with a word about its old rendezvous, if it has it."""
    if plan.rendezvous.backend != ETCD:
        return conditions.without_condition(job, DEPRECATED)
    where = "an etcd of its own" if has_store(plan) else plan.rendezvous.store
    message = f"distributed.rdzvBackend etcd-v2 is for old jobs (it uses {where}); c10d, the default, needs no etcd"
    return conditions.with_condition(job, DEPRECATED, "True", "EtcdV2", message, now)
