"""Target `job`: a batch Job, Indexed when there are several nodes. Needs nothing but Kubernetes."""

from __future__ import annotations

from typing import Any

from orchestra.render.draft import Draft
from orchestra.render.helpers import groundwork, headless_service
from orchestra.render.model import Manifest
from orchestra.render.site import Site, field_ref
from orchestra.render.words import NODE_RANK

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def site(job: str) -> Site:
    """Pods of an Indexed Job have random names, but the host names `<job>-<index>`."""
    return Site(
        container="trainer",
        app="torchrun",
        host_of=lambda index: f"{job}-{index}.{job}",
        own_host=(f"{job}-", NODE_RANK, f".{job}"),
        node_rank=field_ref(INDEX),
        rank_fallback="0",
    )


def batch_job(draft: Draft) -> list[Manifest]:
    """All objects of the job."""
    plan, lifecycle = draft.plan, draft.plan.lifecycle
    restarts = 0 if lifecycle.restart_policy == "Never" else lifecycle.max_restarts or 0
    spec: dict[str, Any] = {
        "#completionMode": "Indexed: each pod knows its number and has a host name by it.",
        "completionMode": "Indexed",
        "completions": plan.node_count,
        "parallelism": plan.node_count,
        "#backoffLimit": "Failures that the job survives. Every node that goes down with it is counted.",
        "backoffLimit": restarts * plan.node_count,
        "podFailurePolicy": {"rules": _failure_rules(draft)},
    }
    if lifecycle.active_deadline_seconds is not None:
        spec["activeDeadlineSeconds"] = lifecycle.active_deadline_seconds
    if lifecycle.ttl_seconds_after_finished is not None:
        spec["ttlSecondsAfterFinished"] = lifecycle.ttl_seconds_after_finished
    if plan.suspended:
        spec["suspend"] = True
    spec["template"] = _pod(draft)
    workload = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": draft.workload_metadata(),
        "spec": spec,
    }
    return [*groundwork(draft), headless_service(draft), workload]


def _pod(draft: Draft) -> dict[str, Any]:
    template = draft.pod()
    head = {
        "#subdomain": "With the headless Service, pod 0 is found by its name: the rendezvous endpoint.",
        "subdomain": draft.name,
        "#restartPolicy": "A new pod instead of a restarted container: the logs of the failed one stay.",
        "restartPolicy": "Never",
    }
    return {**template, "spec": {**head, **template["spec"]}}


def _failure_rules(draft: Draft) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = [
        {
            "#": "A drained or lost machine is nobody's failure.",
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        }
    ]
    if draft.options.plain:
        codes = {"containerName": draft.site.container, "operator": "NotIn", "values": [137, 143]}
        comment = "The script has tried as often as the job allows. 137 and 143 are stops from outside."
        rules.append({"#": comment, "action": "FailJob", "onExitCodes": codes})
    return rules
