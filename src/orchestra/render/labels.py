"""Labels of everything that is rendered, and the annotations that carry what no field can."""

from __future__ import annotations

from typing import Any

from orchestra.api.job import TorchrunJob
from orchestra.plan.model import Plan
from orchestra.render.site import Site

JOB, QUEUE = "torchrun-job-name", "torchrun-queue-name"
COMPONENT, WORKER = "app.kubernetes.io/component", "worker"
GPU_TYPE = "torchrun.ai/gpu-type"
POD_GROUP = "scheduling.x-k8s.io/pod-group"
KAI_QUEUE = "kai.scheduler/queue"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
MANAGER = "orchestra-render"
OURS = frozenset(
    [
        JOB,
        QUEUE,
        POD_GROUP,
        KAI_QUEUE,
        COMPONENT,
        "app.kubernetes.io/name",
        "app.kubernetes.io/instance",
        "app.kubernetes.io/managed-by",
    ]
)
"""Labels that a job's own are laid under."""


def labels(plan: Plan, site: Site) -> dict[str, str]:
    """Labels of one object; a job's own may not hide those by which its parts are found."""
    return plan.labels | {
        "app.kubernetes.io/name": site.app,
        "app.kubernetes.io/instance": plan.job,
        "app.kubernetes.io/managed-by": MANAGER,
        JOB: plan.job,
        QUEUE: plan.queue,
    }


def pod_labels(plan: Plan, site: Site) -> dict[str, str]:
    """Labels of a pod: the same, and its gang."""
    found = labels(plan, site) | {COMPONENT: WORKER}
    if plan.gang.scheduler == "kai" and plan.gang.queue:
        found[KAI_QUEUE] = plan.gang.queue
    if plan.gang.scheduler == "coscheduling":
        found[POD_GROUP] = plan.job
    return found


def workload_metadata(plan: Plan, site: Site, job: TorchrunJob) -> dict[str, Any]:
    """The workload stands for the job: it has the job's own labels and annotations too."""
    kind = {GPU_TYPE: plan.resources.gpu_type} if plan.resources.gpu_type else {}
    notes = {name: text for name, text in job.metadata.annotations.items() if name != LAST_APPLIED}
    notes |= plan.annotations | kind
    found = metadata(plan, site)
    found["labels"] = job.metadata.labels | found["labels"]
    return found | ({"annotations": notes} if notes else {})


def metadata(plan: Plan, site: Site, name: str | None = None) -> dict[str, Any]:
    """Name, namespace and labels of one object."""
    found: dict[str, Any] = {"name": name or plan.job}
    if plan.namespace:
        found["namespace"] = plan.namespace
    return found | {"labels": labels(plan, site)}
