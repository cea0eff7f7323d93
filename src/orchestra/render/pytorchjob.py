"""Target `pytorchjob`: Kubeflow v1, for the training operator."""

from __future__ import annotations

from typing import Any

from orchestra.render.draft import Draft
from orchestra.render.helpers import groundwork
from orchestra.render.model import Manifest
from orchestra.render.site import POD_NAME, Site, field_ref

_INDEX = "metadata.labels['training.kubeflow.org/replica-index']"


def site(job: str, elastic: bool) -> Site:
    """A master and workers; an elastic job has workers only. Each pod has a Service of its own name."""
    if elastic:
        return Site(
            container="pytorch",
            app="torchrun",
            host_of=lambda index: f"{job}-worker-{index}",
            own_host=(POD_NAME,),
            node_rank=field_ref(_INDEX),
            rank_fallback="${POD_NAME##*-}",
            readiness=False,
        )
    return Site(
        container="pytorch",
        app="torchrun",
        host_of=lambda index: f"{job}-worker-{index - 1}" if index else f"{job}-master-0",
        own_host=(POD_NAME,),
        node_rank=None,
        # The operator adds RANK after our variables, so that only a program in the pod can use it.
        rank_variable="RANK",
        rank_fallback="0",
        readiness=False,
        known=(),
    )


def pytorchjob(draft: Draft) -> list[Manifest]:
    """All objects of the job; its Services are the operator's."""
    plan = draft.plan
    spec: dict[str, Any] = {
        "runPolicy": _run_policy(draft),
        **_elastic_policy(draft),
        "#nprocPerNode": "Processes a pod; the launch line says the same.",
        "nprocPerNode": str(plan.procs_per_node),
        "pytorchReplicaSpecs": _replicas(draft),
    }
    workload = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": draft.workload_metadata(),
        "spec": spec,
    }
    return [*groundwork(draft), workload]


def _restarts(draft: Draft) -> int:
    lifecycle = draft.plan.lifecycle
    return 0 if lifecycle.restart_policy == "Never" else lifecycle.max_restarts or 0


def _run_policy(draft: Draft) -> dict[str, Any]:
    plan, lifecycle = draft.plan, draft.plan.lifecycle
    found: dict[str, Any] = {
        "#cleanPodPolicy": "Finished pods stay: their logs are read from them.",
        "cleanPodPolicy": "None",
        "backoffLimit": _restarts(draft),
    }
    if lifecycle.active_deadline_seconds is not None:
        found["activeDeadlineSeconds"] = lifecycle.active_deadline_seconds
    if lifecycle.ttl_seconds_after_finished is not None:
        found["ttlSecondsAfterFinished"] = lifecycle.ttl_seconds_after_finished
    if plan.gang.scheduler == "coscheduling":
        found["schedulingPolicy"] = {"minAvailable": plan.gang.min_member}
    if plan.suspended:
        found["suspend"] = True
    return found


def _elastic_policy(draft: Draft) -> dict[str, Any]:
    plan = draft.plan
    if not plan.elastic:
        return {}
    backend = plan.rendezvous.backend
    host, _, port = plan.rendezvous.store.rpartition(":")
    return {
        "#elasticPolicy": "The launch line carries the same values, and more than this policy has room for.",
        "elasticPolicy": {
            "minReplicas": plan.min_nodes,
            "maxReplicas": plan.max_nodes,
            "rdzvBackend": backend,
            "rdzvHost": host,
            "rdzvPort": int(port),
            "maxRestarts": _restarts(draft),
        },
    }


def _replicas(draft: Draft) -> dict[str, Any]:
    plan = draft.plan
    policy = "OnFailure" if _restarts(draft) else "Never"
    one = {"restartPolicy": policy, "template": draft.pod()}
    if plan.elastic:
        return {"Worker": {"replicas": plan.node_count, **one}}
    master = {
        "#": "Node 0: it hosts the rendezvous, and the job ends when it does.",
        "Master": {"replicas": 1, **one},
    }
    workers = plan.node_count - 1
    return {**master, "Worker": {"replicas": workers, **one}} if workers else master
