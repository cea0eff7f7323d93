"""Jobs without our operator, seen as jobs: what a StatefulSet, Job, PyTorchJob or TrainJob of `render` says. Pure.

Each becomes a TorchrunJob whose status is read from the workload, its pods and their agents' pages, so that every verb
that looks at a job looks at these too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from orchestra.api.base import decode_hook
from orchestra.api.job import Failure, Phase, TorchrunJob, TorchrunJobSpec, TorchrunJobStatus, Workers
from orchestra.api.kubernetes import Condition, ObjectMeta
from orchestra.api.labels import JOB_LABEL, NODE_LABEL, QUEUE_LABEL
from orchestra.cluster.kinds import Pod
from orchestra.kube.objects import Resource
from orchestra.plan import status
from orchestra.plan.outcome import AgentResult, outcome_of

Json = dict[str, Any]

STATEFULSETS = Resource("apps", "v1", "StatefulSet", "statefulsets")
BATCH_JOBS = Resource("batch", "v1", "Job", "jobs")
PYTORCHJOBS = Resource("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs")
TRAINJOBS = Resource("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs")
WORKLOADS = {one.kind: one for one in (STATEFULSETS, BATCH_JOBS, PYTORCHJOBS, TRAINJOBS)}

MANAGED = "app.kubernetes.io/managed-by=orchestra-render"
WORKER = "app.kubernetes.io/component=worker"
_ROLES = ("training.kubeflow.org/replica-type", "jobset.sigs.k8s.io/replicatedjob-name")
_FIRST_ROLES = ("launcher", "master")
_INDICES = (NODE_LABEL, "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index",
            "training.kubeflow.org/replica-index")  # fmt: skip
_ENDS: dict[str, Phase] = {
    "Complete": "Succeeded",  # Job, TrainJob
    "Succeeded": "Succeeded",  # PyTorchJob
    "Failed": "Failed",
    "Suspended": "Suspended",
}


def role_of(pod: Pod) -> str:
    """`master`, `launcher`, `worker` or `node`, as its controller calls it."""
    return next((pod.label(name) for name in _ROLES if pod.label(name)), "worker")


def pod_order(pod: Pod) -> tuple[bool, int, str]:
    """Launcher and master first, then by index."""
    return role_of(pod) not in _FIRST_ROLES, _number(pod), pod.metadata.name


def in_role(pods: Sequence[Pod], role: str | None) -> list[Pod]:
    """The `master` (a launcher is one too; without either: the first node) or each other `worker`; all if neither."""
    if role is None:
        return list(pods)
    named = any(role_of(pod) in _FIRST_ROLES for pod in pods)
    first = [role_of(pod) in _FIRST_ROLES if named else _number(pod) == 0 for pod in pods]
    return [pod for pod, is_first in zip(pods, first, strict=True) if is_first == (role == "master")]


def _number(pod: Pod) -> int:
    """Of its node, as its controller counts."""
    return int(next((pod.label(name) for name in _INDICES if pod.label(name).isdigit()), "0"))


def as_job(workload: Json, pods: Sequence[Pod], pages: Mapping[str, Json]) -> TorchrunJob:
    """The job that a workload stands for. `pages` are what the pods' agents answer, by pod."""
    shown = {name: value for name, value in workload["metadata"].items() if name != "managedFields"}
    meta = msgspec.convert(shown, ObjectMeta, strict=False, dec_hook=decode_hook)
    nodes = _nodes(workload)
    spec = TorchrunJobSpec(job_queue=meta.labels.get(QUEUE_LABEL, ""), command="", num_nodes=nodes)
    named = msgspec.structs.replace(meta, name=meta.labels.get(JOB_LABEL, meta.name))
    job = TorchrunJob(metadata=named, spec=spec, status=TorchrunJobStatus(nodes=nodes, workers=_workers(nodes, pods)))
    phase, reason, message = _phase(workload, pods, pages, nodes)
    since = status.seconds_of(_since(workload, phase)) or 0.0
    job = status.in_phase(job, phase, reason, message, since)
    began = (workload.get("status") or {}).get("startTime") or meta.creation_timestamp
    restarts = max((pod.restarts for pod in pods), default=0)
    job = status.with_status(job, start_time=began, restarts=restarts)
    reported = next((page["progress"] for page in pages.values() if isinstance(page.get("progress"), dict)), None)
    if reported is not None:
        job = status.with_progress(job, status.progress_from(reported))
    return status.failed(job, _failure(pods, pages)) if phase == "Failed" else job


def _nodes(workload: Json) -> int:
    spec = workload.get("spec") or {}
    match workload["kind"]:
        case "StatefulSet":
            return int(spec.get("replicas", 1))
        case "Job":
            return int(spec.get("parallelism", 1))
        case "PyTorchJob":
            return sum(int(one.get("replicas", 1)) for one in (spec.get("pytorchReplicaSpecs") or {}).values())
        case _:
            return int((spec.get("trainer") or {}).get("numNodes", 1))


def _workers(nodes: int, pods: Sequence[Pod]) -> Workers:
    phases = [pod.status.phase for pod in pods]
    ready = sum(any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions) for pod in pods)
    running, failed, succeeded = (phases.count(phase) for phase in ("Running", "Failed", "Succeeded"))
    return Workers(desired=nodes, ready=ready, running=running, failed=failed, succeeded=succeeded)


def _phase(workload: Json, pods: Sequence[Pod], pages: Mapping[str, Json], nodes: int) -> tuple[Phase, str, str]:
    kind = workload["kind"]
    for condition in _conditions(workload):
        if condition.status == "True" and condition.type in _ENDS:
            words = condition.message or f"its {kind} says {condition.type}"
            return _ENDS[condition.type], condition.reason or condition.type, words
    if kind == "StatefulSet":
        if nodes == 0:
            return "Suspended", "ScaledToZero", "its StatefulSet has no replicas"
        ended = [str(page.get("state")) for page in pages.values() if page.get("idle")]
        if len(ended) == nodes:  # they idle: a StatefulSet knows no end
            failed = sum(state != "done" for state in ended)
            if not failed:
                return "Succeeded", "Done", "all ranks are done"
            return "Failed", "Failed", f"{failed} of {nodes} workers failed for good"
    running = sum(pod.status.phase == "Running" for pod in pods)
    if running >= nodes > 0:
        return "Running", "Started", "all workers are running"
    if running:
        return "Running", "Starting", f"{running} of {nodes} workers are running"
    if pods:
        return "Provisioning", "Starting", f"0 of {nodes} workers are running"
    return "Pending", "NoPods", f"its {kind} has no pods yet"


def _conditions(workload: Json) -> list[Condition]:
    found = (workload.get("status") or {}).get("conditions") or []
    return [msgspec.convert(one, Condition, strict=False) for one in found]


def _since(workload: Json, phase: Phase) -> str | None:
    mine = [one for one in _conditions(workload) if one.status == "True" and _ENDS.get(one.type) == phase]
    return mine[0].last_transition_time if mine else workload["metadata"].get("creationTimestamp")


def _failure(pods: Sequence[Pod], pages: Mapping[str, Json]) -> Failure | None:
    """The first failing rank of all pods, as their agents told it: while they idle, or when their containers ended."""
    told = {number: _told(pages.get(pod.metadata.name) or _last_words(pod)) for number, pod in enumerate(pods)}
    failure = outcome_of(told).failure if any(told.values()) else None
    if failure is None or failure.pod is None or not failure.pod.isdigit():
        return failure
    return msgspec.structs.replace(failure, pod=pods[int(failure.pod)].metadata.name)


def _told(page: Json) -> AgentResult | None:
    try:
        return msgspec.convert(page, AgentResult, strict=False) if page else None
    except msgspec.ValidationError:
        return None


def _last_words(pod: Pod) -> Json:
    for container in pod.status.container_statuses:
        for state in (container.state, container.last_state):
            if state.terminated is not None and state.terminated.message.startswith("{"):
                try:
                    found = json.loads(state.terminated.message)
                except ValueError:
                    continue
                if isinstance(found, dict):
                    return found
    return {}
