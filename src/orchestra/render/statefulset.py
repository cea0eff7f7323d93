"""Target `statefulset`: headless Service and StatefulSet, one pod a node. Needs nothing but Kubernetes."""

from __future__ import annotations

from orchestra.render.draft import Draft
from orchestra.render.helpers import groundwork, headless_service
from orchestra.render.labels import COMPONENT, JOB, WORKER
from orchestra.render.model import Manifest
from orchestra.render.site import Site, field_ref
from orchestra.render.words import NODE_RANK


def site(job: str) -> Site:
    """Pods are `<job>-0`, `<job>-1`, ... under the Service `<job>`."""
    return Site(
        container="trainer",
        app="torchrun",
        host_of=lambda index: f"{job}-{index}.{job}",
        own_host=(f"{job}-", NODE_RANK, f".{job}"),
        node_rank=field_ref("metadata.labels['apps.kubernetes.io/pod-index']"),
        rank_fallback="${POD_NAME##*-}",
        idles=True,
    )


def statefulset(draft: Draft) -> list[Manifest]:
    """All objects of the job."""
    plan = draft.plan
    spec = {
        "serviceName": plan.job,
        "#replicas": "One pod a node. Scaling is a new size of the world: change NNODES below in the same step.",
        "replicas": 0 if plan.suspended else plan.node_count,
        "#podManagementPolicy": "All at once. With the default, pod 1 is started when pod 0 is ready, and pod 0 waits"
        " for pod 1: for ever.",
        "podManagementPolicy": "Parallel",
        "#updateStrategy": "A rolling update would tear the running world apart pod by pod. Delete the pods when you"
        " want the new version.",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": {JOB: plan.job, COMPONENT: WORKER}},
        "template": draft.pod(),
    }
    workload = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": draft.workload_metadata(),
        "spec": spec,
    }
    return [*groundwork(draft), headless_service(draft), workload]
