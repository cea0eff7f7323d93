"""No job and no queue, however odd, makes the planner stumble: it plans, or says what is wrong."""

from __future__ import annotations

import json
import random
from typing import TypeVar

import msgspec

from fuzz_objects import Fuzzer
from orchestra.api.base import decode_hook
from orchestra.api.job import TorchrunJob, TorchrunJobSpec
from orchestra.api.kubernetes import ObjectMeta
from orchestra.api.problem import Invalid
from orchestra.api.queue import TorchrunQueue, TorchrunQueueSpec
from orchestra.kube.objects import Metadata
from orchestra.operator.attempt import plan_attempt, pod_children, shared_children
from orchestra.operator.queueing import kai
from orchestra.operator.queueing.checks import trial_pod
from orchestra.operator.queueing.lines import limits_of
from orchestra.plan.planner import needs_of

S = TypeVar("S")
JOB = Metadata(name="j", namespace="ns", uid="uid-uid-uid")


def test_random_objects_are_planned_or_refused_with_reasons() -> None:
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}")
    fuzzer, planned = Fuzzer(seed), 0
    for _ in range(400):
        spec = read(fuzzer.queue("q")["spec"], TorchrunQueueSpec)
        if spec is None:
            continue
        queue = TorchrunQueue(metadata=ObjectMeta(name="q"), spec=spec)
        trial_pod("q", spec)
        kai.wanted(spec)
        limits_of(spec)
        for _ in range(3):
            job_spec = read(fuzzer.job("j", ["q"])["spec"], TorchrunJobSpec)
            if job_spec is not None:
                planned += whole(queue, TorchrunJob(metadata=ObjectMeta(name="j", namespace="ns"), spec=job_spec))
    assert planned > 20, "almost nothing was plausible: the generator is off"


def read(spec: object, kind: type[S]) -> S | None:
    try:
        return msgspec.json.decode(json.dumps(spec), type=kind, dec_hook=decode_hook)
    except msgspec.ValidationError:
        return None


def whole(queue: TorchrunQueue, job: TorchrunJob) -> bool:
    """Whether it can run; then all its objects can be written, and it has a size."""
    sized = needs_of(queue, job)
    problems = []
    try:
        made = plan_attempt(queue, job, JOB.uid, 1)
    except Invalid as invalid:
        problems = invalid.problems
    if problems:
        assert all(problem.path and problem.reason for problem in problems)
        return False
    assert sized is not None
    msgspec.json.encode([child.body for child in (*shared_children(made, JOB, 1), *pod_children(made, JOB, 1))])
    return True
