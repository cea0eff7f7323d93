"""Names and labels of everything a job owns. Deterministic: a second create is a 409 and not a second object."""

from __future__ import annotations

from orchestra.agent.pack import agent_hash
from orchestra.kube.objects import Metadata
from orchestra.operator.kinds import ATTEMPT_LABEL, JOB_LABEL, NODE_LABEL, QUEUE_LABEL, ROLE_LABEL
from orchestra.plan import Plan
from orchestra.plan.where import AGENT_PORT

__all__ = ["AGENT_PORT", "agent_config_map", "host", "labels", "owner", "store", "worker"]


def worker(job: str, index: int, attempt: int) -> str:
    """`<job>-<index>`, later `<job>-<index>-r<attempt>`: a pod stuck on a dead node holds its old name."""
    return f"{job}-{index}" if attempt == 1 else f"{job}-{index}-r{attempt}"


def store(job: str, attempt: int) -> str:
    """The rendezvous store's pod."""
    return f"{job}-rdzv" if attempt == 1 else f"{job}-rdzv-r{attempt}"


def host(pod: str, job: str) -> str:
    """A pod's name under the job's headless Service."""
    return f"{pod}.{job}"


def agent_config_map() -> str:
    """One a namespace, named by its content."""
    return f"orchestra-agent-{agent_hash()}"


def labels(plan: Plan, role: str, attempt: int | None = None, index: int | None = None) -> dict[str, str]:
    """Labels of one object; the user's own come first and cannot replace ours."""
    ours = {
        JOB_LABEL: plan.job,
        QUEUE_LABEL: plan.queue,
        ROLE_LABEL: role,
        "app.kubernetes.io/name": "torchrun-job",
        "app.kubernetes.io/instance": plan.job,
        "app.kubernetes.io/managed-by": "orchestra",
    }
    if attempt is not None:
        ours[ATTEMPT_LABEL] = str(attempt)
    if index is not None:
        ours[NODE_LABEL] = str(index)
    return plan.labels | ours


def owner(job: Metadata) -> dict[str, object]:
    """The reference that ties a child to its job."""
    return {
        "apiVersion": "torchrun.ai/v1alpha1",
        "kind": "TorchrunJob",
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
