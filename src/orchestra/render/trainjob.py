"""Target `trainjob`: Kubeflow Trainer v2, with a TrainingRuntime made for the job.

The TrainJob of older texts had `replicas` and `replicaSpecs` of launcher and workers. Today's TrainJob says only what
to train and how large; where and how is the runtime's, so that both are written here.
"""

from __future__ import annotations

from typing import Any

from orchestra.api.problem import Problem
from orchestra.render import mpi_runtime
from orchestra.render.batch_job import INDEX
from orchestra.render.draft import Draft
from orchestra.render.helpers import groundwork
from orchestra.render.model import Manifest
from orchestra.render.site import Site, field_ref
from orchestra.render.words import NODE_RANK

_LABEL, _RANDOM_PART = 63, 6
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def site(job: str) -> Site:
    """JobSet's pods: host `<job>-node-0-<index>` under a Service of the job's name."""
    return Site(
        container="node",
        app="trainjob",
        host_of=lambda index: f"{job}-node-0-{index}.{job}",
        own_host=(f"{job}-node-0-", NODE_RANK, f".{job}"),
        node_rank=field_ref(INDEX),
        rank_fallback="0",
    )


def too_long(job: str, nodes: int, mpi: bool) -> Problem | None:
    """JobSet refuses names whose pods would not fit into a label; it says so in a log that nobody reads."""
    longest = max([f"{job}-node-0-{nodes - 1}", *([f"{job}-launcher-0-0"] if mpi else [])], key=len)
    over = len(longest) + _RANDOM_PART - _LABEL
    if over <= 0:
        return None
    reason = f"JobSet would name a pod {longest}-xxxxx, which is {over} characters too long"
    return Problem("metadata.name", reason, f"at most {len(job) - over} characters, for --target trainjob")


def trainjob(draft: Draft) -> list[Manifest]:
    """All objects of the job."""
    plan = draft.plan
    mpi = mpi_runtime.wants_mpi(plan.launch.launcher, plan.node_count, draft.options.ssh)
    if mpi:
        draft = mpi_runtime.over_ssh(draft)
    trainer: dict[str, Any] = {"numNodes": plan.node_count}
    if plan.launch.launcher == "torchrun":
        trainer["numProcPerNode"] = plan.procs_per_node
    spec: dict[str, Any] = {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "TrainingRuntime",
            "name": plan.job,
        },
        "trainer": trainer,
    }
    if plan.lifecycle.active_deadline_seconds is not None:
        spec["activeDeadlineSeconds"] = plan.lifecycle.active_deadline_seconds
    if plan.suspended:
        spec["suspend"] = True
    workload = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": draft.workload_metadata(),
        "spec": spec,
    }
    return [*groundwork(draft), _runtime(draft, mpi), workload]


def _runtime(draft: Draft, mpi: bool) -> Manifest:
    plan = draft.plan
    spec: dict[str, Any] = {"mlPolicy": mpi_runtime.policy(draft) if mpi else _policy(draft)}
    if plan.gang.scheduler == "coscheduling":
        timeout = plan.lifecycle.gang_timeout_seconds
        spec["podGroupPolicy"] = {"coscheduling": {"scheduleTimeoutSeconds": timeout} if timeout else {}}
    restarts = 0 if plan.lifecycle.restart_policy == "Never" else plan.lifecycle.max_restarts or 0
    job_set: dict[str, Any] = {
        "#failurePolicy": "A failed pod starts all of them anew, together, from the last checkpoint.",
        "failurePolicy": {"maxRestarts": restarts},
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": mpi_runtime.replicated_jobs(_nodes(draft)) if mpi else [_nodes(draft)],
    }
    if mpi:
        job_set["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["launcher"]}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": draft.metadata(),
        "spec": {**spec, "template": {"spec": job_set}},
    }


def _policy(draft: Draft) -> dict[str, Any]:
    policy: dict[str, Any] = {"numNodes": draft.plan.node_count}
    if draft.plan.launch.launcher == "torchrun":
        return {**policy, "torch": {}}
    if draft.plan.launch.launcher == "deepspeed" and draft.plan.node_count > 1:
        comment = "No MPI: `deepspeed --no_ssh` runs on each node, and the image needs no sshd."
        return {"#": comment, **policy}
    return policy


def _nodes(draft: Draft) -> dict[str, Any]:
    template = draft.pod()
    size = {"completions": draft.plan.node_count, "parallelism": draft.plan.node_count}
    return {
        "name": "node",
        "template": {
            "#metadata": "By this label the Trainer knows which pods train.",
            "metadata": {"labels": {_STEP: "trainer"}},
            "spec": {
                "completionMode": "Indexed",
                **size,
                "backoffLimit": 0,
                "template": {**template, "spec": {"restartPolicy": "Never", **template["spec"]}},
            },
        },
    }
