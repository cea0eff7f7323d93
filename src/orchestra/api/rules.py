"""Rules that need more than one field of one object.

Each stands here once, as Python for files and as CEL for the API server, with one sentence that both say. A test
compares the two verdicts on a real API server.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestra.api.job import TorchrunJob
from orchestra.api.problem import Problem
from orchestra.api.queue import TorchrunQueue

MAX_JOB_NAME = 48
_JOB_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_QUEUE_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

T = TypeVar("T")


@dataclass(frozen=True)
class Rule(Generic[T]):
    """One rule. `at` is the object whose `self` the CEL expression sees ("" or "spec")."""

    at: str
    path: str
    reason: str
    mend: str
    cel: str
    holds: Callable[[T], bool]

    @property
    def message(self) -> str:
        """What both the API server and `orchestra validate` say."""
        return f"{self.reason}; {self.mend}"


def _lifecycle_rule(name: str, attribute: str) -> Rule[TorchrunJob]:
    def holds(job: TorchrunJob) -> bool:
        flat = getattr(job.spec, attribute)
        nested = getattr(job.spec.lifecycle, attribute) if job.spec.lifecycle else None
        return flat is None or nested is None or flat == nested

    return Rule(
        at="spec",
        path=f"spec.{name}",
        reason=f"{name} and lifecycle.{name} disagree",
        mend="keep one of them",
        cel=f"!has(self.{name}) || !has(self.lifecycle) || !has(self.lifecycle.{name}) "
        f"|| self.{name} == self.lifecycle.{name}",
        holds=holds,
    )


def _range_holds(job: TorchrunJob) -> bool:
    elastic, nodes = job.spec.elastic, job.spec.num_nodes
    if elastic is None or nodes is None:
        return True
    return elastic.min_nodes <= nodes and (elastic.max_nodes is None or nodes <= elastic.max_nodes)


def _static_holds(job: TorchrunJob) -> bool:
    static = job.spec.distributed is not None and job.spec.distributed.rdzv_backend == "static"
    return job.spec.elastic is None or not static


def _workspace_has_url(job: TorchrunJob) -> bool:
    workspace = job.spec.workspace
    return workspace is None or workspace.source not in ("git", "s3") or workspace.url is not None


JOB_RULES: tuple[Rule[TorchrunJob], ...] = (
    Rule(
        at="",
        path="metadata.name",
        reason="a job's name becomes a Service and host names",
        mend="use lower-case letters, digits and -, beginning with a letter and ending with a letter or digit",
        cel=f"self.metadata.name.matches('{_JOB_NAME}')",
        holds=lambda job: bool(re.fullmatch(_JOB_NAME[1:-1], job.metadata.name)),
    ),
    Rule(
        at="",
        path="metadata.name",
        reason=f"a job's name has at most {MAX_JOB_NAME} characters, so that its pods' names fit",
        mend="shorten it",
        cel=f"size(self.metadata.name) <= {MAX_JOB_NAME}",
        holds=lambda job: len(job.metadata.name) <= MAX_JOB_NAME,
    ),
    Rule(
        at="",
        path="metadata.name",
        reason="names ending in -sync or -rdzv are taken by the job's own helpers",
        mend="choose another ending",
        cel="!self.metadata.name.endsWith('-sync') && !self.metadata.name.endsWith('-rdzv')",
        holds=lambda job: not job.metadata.name.endswith(("-sync", "-rdzv")),
    ),
    Rule(
        at="spec",
        path="spec.numNodes",
        reason="numGPUs and numNodes both give the size",
        mend="keep one of them",
        cel="!(has(self.numGPUs) && has(self.numNodes))",
        holds=lambda job: job.spec.num_gpus is None or job.spec.num_nodes is None,
    ),
    Rule(
        at="spec",
        path="spec.gpusPerNode",
        reason="gpusPerNode goes with numNodes; numGPUs divides itself over the nodes",
        mend="remove gpusPerNode, or give numNodes instead of numGPUs",
        cel="!(has(self.numGPUs) && has(self.gpusPerNode))",
        holds=lambda job: job.spec.num_gpus is None or job.spec.gpus_per_node is None,
    ),
    Rule(
        at="spec",
        path="spec.procsPerNode",
        reason="procsPerNode goes with numNodes; numGPUs means one process a GPU",
        mend="remove procsPerNode, or give numNodes instead of numGPUs",
        cel="!(has(self.numGPUs) && has(self.procsPerNode))",
        holds=lambda job: job.spec.num_gpus is None or job.spec.procs_per_node is None,
    ),
    Rule(
        at="spec",
        path="spec.elastic",
        reason="minNodes is larger than maxNodes",
        mend="minNodes <= maxNodes",
        cel="!has(self.elastic) || !has(self.elastic.maxNodes) || self.elastic.minNodes <= self.elastic.maxNodes",
        holds=lambda job: (
            job.spec.elastic is None
            or job.spec.elastic.max_nodes is None
            or job.spec.elastic.min_nodes <= job.spec.elastic.max_nodes
        ),
    ),
    Rule(
        at="spec",
        path="spec.elastic",
        reason="numNodes is outside the elastic range",
        mend="minNodes <= numNodes <= maxNodes",
        cel="!has(self.elastic) || !has(self.numNodes) || (self.elastic.minNodes <= self.numNodes "
        "&& (!has(self.elastic.maxNodes) || self.numNodes <= self.elastic.maxNodes))",
        holds=_range_holds,
    ),
    Rule(
        at="spec",
        path="spec.distributed.rdzvBackend",
        reason="a static rendezvous cannot grow or shrink",
        mend="use c10d with elastic",
        cel="!has(self.elastic) || !has(self.distributed) || !has(self.distributed.rdzvBackend) "
        "|| self.distributed.rdzvBackend != 'static'",
        holds=_static_holds,
    ),
    Rule(
        at="spec",
        path="spec.workspace",
        reason="a workspace from git or s3 needs its address",
        mend="add url",
        cel="!has(self.workspace) || !has(self.workspace.source) || !(self.workspace.source in ['git', 's3']) "
        "|| has(self.workspace.url)",
        holds=_workspace_has_url,
    ),
    Rule(
        at="spec",
        path="spec.secrets",
        reason="env names the variable of one key",
        mend="add key, or remove env to get all keys of the Secret",
        cel="!has(self.secrets) || self.secrets.all(s, !has(s.env) || has(s.key))",
        holds=lambda job: all(secret.env is None or secret.key is not None for secret in job.spec.secrets),
    ),
    Rule(
        at="spec",
        path="spec.env",
        reason="a variable has either value or valueFrom",
        mend="keep one of them",
        cel="!has(self.env) || self.env.all(e, !(has(e.value) && has(e.valueFrom)))",
        holds=lambda job: all(one.value is None or one.value_from is None for one in job.spec.env),
    ),
    _lifecycle_rule("restartPolicy", "restart_policy"),
    _lifecycle_rule("maxRestarts", "max_restarts"),
    _lifecycle_rule("ttlSecondsAfterFinished", "ttl_seconds_after_finished"),
    _lifecycle_rule("activeDeadlineSeconds", "active_deadline_seconds"),
)


def _names_its_parent(queue: TorchrunQueue) -> bool:
    return queue.spec.kai_queue is None or queue.spec.kai_queue != queue.spec.parent_kai_queue


def _one_gang_scheduler(queue: TorchrunQueue) -> bool:
    scheduling = queue.spec.scheduling
    if scheduling is None or scheduling.gang != "coscheduling":
        return True
    return queue.spec.kai_queue is None and scheduling.scheduler != "kai-scheduler"


def _queue_workspace_has_url(queue: TorchrunQueue) -> bool:
    workspace = queue.spec.storage.workspace if queue.spec.storage else None
    return workspace is None or workspace.source not in ("git", "s3") or workspace.url is not None


QUEUE_RULES: tuple[Rule[TorchrunQueue], ...] = (
    Rule(
        at="",
        path="metadata.name",
        reason="a queue's name becomes a label",
        mend="at most 63 lower-case letters, digits, - and ., beginning and ending with a letter or digit",
        cel=f"size(self.metadata.name) <= 63 && self.metadata.name.matches('{_QUEUE_NAME}')",
        holds=lambda queue: (
            len(queue.metadata.name) <= 63 and bool(re.fullmatch(_QUEUE_NAME[1:-1], queue.metadata.name))
        ),
    ),
    Rule(
        at="spec",
        path="spec.parentKaiQueue",
        reason="a KAI queue cannot be its own parent",
        mend="name another parent",
        cel="!has(self.kaiQueue) || self.kaiQueue != self.parentKaiQueue",
        holds=_names_its_parent,
    ),
    Rule(
        at="spec",
        path="spec.scheduling.gang",
        reason="this queue uses KAI, which places gangs itself",
        mend="remove gang: coscheduling, or kaiQueue and scheduler: kai-scheduler",
        cel="!has(self.scheduling) || !has(self.scheduling.gang) || self.scheduling.gang != 'coscheduling' "
        "|| (!has(self.kaiQueue) && (!has(self.scheduling.scheduler) "
        "|| self.scheduling.scheduler != 'kai-scheduler'))",
        holds=_one_gang_scheduler,
    ),
    Rule(
        at="spec",
        path="spec.storage.workspace",
        reason="a workspace from git or s3 needs its address",
        mend="add url",
        cel="!has(self.storage) || !has(self.storage.workspace) || !has(self.storage.workspace.source) "
        "|| !(self.storage.workspace.source in ['git', 's3']) || has(self.storage.workspace.url)",
        holds=_queue_workspace_has_url,
    ),
    Rule(
        at="spec",
        path="spec.env",
        reason="a variable has either value or valueFrom",
        mend="keep one of them",
        cel="!has(self.env) || self.env.all(e, !(has(e.value) && has(e.valueFrom)))",
        holds=lambda queue: all(one.value is None or one.value_from is None for one in queue.spec.env),
    ),
)


def broken_rules(thing: TorchrunJob | TorchrunQueue) -> list[Problem]:
    """Every rule that this object breaks."""
    if isinstance(thing, TorchrunJob):
        return [Problem(r.path, r.reason, r.mend) for r in JOB_RULES if not r.holds(thing)]
    return [Problem(r.path, r.reason, r.mend) for r in QUEUE_RULES if not r.holds(thing)]
