"""What a job was started with stays what it runs: changes that the API server could not refuse are not taken. Pure.

CEL compares typed fields only. The rest (`command` may be a line or a list, volumes and templates may be anything) is
written into the status when an attempt starts, and every later attempt is planned from there until the job is
suspended, which is when some of it may change.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from orchestra.api.base import from_builtins, to_builtins
from orchestra.api.changes import ALWAYS, forbidden_changes
from orchestra.api.crd import fields_cel_sees
from orchestra.api.job import TorchrunJob, TorchrunJobSpec
from orchestra.api.problem import Problem
from orchestra.operator import conditions
from orchestra.plan import Plan, status

CHANGES = "ChangesTaken"
Json = dict[str, Any]


@functools.cache
def unguarded() -> tuple[str, ...]:
    """Fields of a job that only we can compare."""
    seen = {*fields_cel_sees(), *ALWAYS}
    fields = (field.encode_name for field in msgspec.structs.fields(TorchrunJobSpec))
    return tuple(name for name in fields if name not in seen)


def values(spec: TorchrunJobSpec) -> Json:
    """Those fields, as they are now."""
    plain = to_builtins(spec)
    return {name: plain[name] for name in unguarded() if name in plain}


def effective(job: TorchrunJob) -> tuple[TorchrunJob, list[Problem]]:
    """The job as it is to be run, and what of its spec is not taken."""
    current = status.status_of(job)
    if current.accepted is None or current.accepted == values(job.spec):
        return job, []
    suspended = current.phase == "Suspended"
    plain = to_builtins(job.spec)
    old = {name: value for name, value in plain.items() if name not in unguarded()} | current.accepted
    before = msgspec.structs.replace(from_builtins(old, TorchrunJobSpec), suspend=suspended)
    problems = forbidden_changes(before, job.spec)
    refused = {problem.path.removeprefix("spec.") for problem in problems}
    taken = {name: value for name, value in plain.items() if name not in refused}
    taken |= {name: value for name, value in current.accepted.items() if name in refused}
    return msgspec.structs.replace(job, spec=from_builtins(taken, TorchrunJobSpec)), problems


def told(job: TorchrunJob, problems: tuple[Problem, ...], now: float) -> TorchrunJob:
    """The job with a condition about what is not taken, while there is anything."""
    if not problems:
        return conditions.without_condition(job, CHANGES)
    message = "not taken: " + "; ".join(str(problem) for problem in problems)
    return conditions.with_condition(job, CHANGES, "False", "Forbidden", message, now)


def started_with(plan: Plan, job: TorchrunJob) -> Plan:
    """The plan of an attempt under way has the size it was started with, whatever became of its queue."""
    current = status.status_of(job)
    under_way = current.phase in ("Provisioning", "Running") and current.nodes
    if not under_way or plan.elastic or plan.node_count == current.nodes or current.nodes is None:
        return plan
    size = {"node_count": current.nodes, "min_nodes": current.nodes, "max_nodes": current.nodes}
    return msgspec.structs.replace(plan, **size)
