"""Placing all workers at once: the object that a gang scheduler reads, and how pods join it. Pure.

Names hold the job's UID: KAI takes two half-gangs of one name, in whatever namespaces, for one gang.
"""

from __future__ import annotations

from typing import Any

from orchestra.kube.objects import Key, Metadata
from orchestra.kube.writes import Child
from orchestra.operator import names
from orchestra.operator.kinds import COSCHEDULING_POD_GROUPS, KAI_POD_GROUPS
from orchestra.plan import Plan

Json = dict[str, Any]

_SCHEDULE_TIMEOUT = 60


def group_name(job: Metadata, attempt: int) -> str:
    """One a job and attempt, unique in the whole cluster."""
    return f"{job.name}-{job.uid[:8]}-{attempt}"


def group_children(made: Plan, job: Metadata, attempt: int) -> list[Child]:
    """The gang's object, if the queue has a gang scheduler."""
    if made.gang.scheduler == "none":
        return []
    name = group_name(job, attempt)
    metadata = {"name": name, "labels": names.labels(made, "shared", attempt), "ownerReferences": [names.owner(job)]}
    if made.gang.scheduler == "coscheduling":
        spec: Json = {"minMember": made.gang.min_member, "scheduleTimeoutSeconds": _SCHEDULE_TIMEOUT}
        resource = COSCHEDULING_POD_GROUPS
    else:
        scheduling = made.template.scheduling
        priority = scheduling.priority_class_name if scheduling else None
        spec = {"minMember": made.gang.min_member, "queue": made.gang.queue or made.queue}
        spec |= {"priorityClassName": priority} if priority else {}
        resource = KAI_POD_GROUPS
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
    return [Child(resource, Key(job.namespace, name), body)]


def joined(pod: Json, made: Plan, job: Metadata, attempt: int, index: int) -> Json:
    """A worker's pod as a member of its gang."""
    if made.gang.scheduler == "none":
        return pod
    name = group_name(job, attempt)
    metadata = dict(pod["metadata"])
    if made.gang.scheduler == "coscheduling":
        metadata["labels"] = {**metadata["labels"], "scheduling.x-k8s.io/pod-group": name}
        return {**pod, "metadata": metadata}
    # Without the second annotation KAI's podgrouper moves the pod into a group of its own, with one member.
    joins = {"pod-group-name": name, "kai.scheduler/skip-podgrouper": "true"}
    metadata["annotations"] = {**metadata.get("annotations", {}), **joins}
    if index == 0:  # binds first, is evicted last
        metadata["labels"] = {**metadata["labels"], "kai.scheduler/task-priority": "1"}
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], "schedulerName": "kai-scheduler"}}
