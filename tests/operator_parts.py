"""Small makers of what the operator sees: pods, jobs in a phase, observations."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from builders import a_job, a_queue
from orchestra.api.job import Progress, TorchrunJob
from orchestra.kube.objects import Metadata, OwnerReference
from orchestra.kube.pods import ContainerState, ContainerStatus, PodStatus, Terminated, Waiting
from orchestra.operator.attempt import plan_attempt
from orchestra.operator.decision import Observation
from orchestra.operator.kinds import PodObject
from orchestra.operator.lost_nodes import Losses
from orchestra.plan import status

NOW = 1_800_000_000.0
UID = "uid-1"


def a_pod(index: int, phase: str = "Running", attempt: int = 1, *, leaving: bool = False, ended: Terminated | None = None,
          waiting: Waiting | None = None, role: str = "worker") -> PodObject:  # fmt: skip
    state = ContainerState(terminated=ended, waiting=waiting)
    labels = {"torchrun.ai/role": role, "torchrun.ai/attempt": str(attempt), "torchrun-node-index": str(index)}
    owner = OwnerReference(api_version="torchrun.ai/v1alpha1", kind="TorchrunJob", name="job", uid=UID, controller=True)
    meta = Metadata(name=f"job-{index}-{attempt}-{role}", namespace="ns", uid=f"pod-{index}", labels=labels, owner_references=(owner,),
                    deletion_timestamp="2027-01-01T00:00:00Z" if leaving else None)  # fmt: skip
    return PodObject(
        metadata=meta, status=PodStatus(phase=phase, container_statuses=(ContainerStatus(name="trainer", state=state),))
    )


def ended(index: int, state: str, attempt: int = 1, **result: Any) -> PodObject:
    code = {"done": 0, "stopped": 75, "hang": 76}.get(state, 1)
    message = json.dumps({"state": state, **result})
    return a_pod(
        index, "Succeeded" if code == 0 else "Failed", attempt, ended=Terminated(exit_code=code, message=message)
    )


def seen(
    job: TorchrunJob, *pods: PodObject, progress: Progress | None = None, losses: Losses | None = None
) -> Observation:
    """What the operator sees; a job under way has its store, unless another one is given."""
    current = status.status_of(job)
    attempt = max(1, current.attempt or 1)
    made = plan_attempt(a_queue(), job, UID, attempt)
    if pods and current.phase in ("Provisioning", "Running") and all(pod.is_worker for pod in pods):
        pods = (*pods, a_pod(-1, attempt=attempt, role="store"))
    return Observation(
        job=job, plan=made, problems=(), queue_missing=False, pods=pods, progress=progress, losses=losses or Losses()
    )


def job(phase: str | None = None, attempt: int = 0, created: bool = True, **spec: Any) -> TorchrunJob:
    """A two-node job as it stands in a phase."""
    made = a_job(numGPUs=16, **spec)
    if phase is None:
        return made
    made = status.with_status(made, attempt=attempt)
    made = status.in_phase(made, phase, "Test", "test", NOW - 100)  # type: ignore[arg-type]
    condition = {
        "type": "Created",
        "status": "True" if created else "False",
        "reason": "r",
        "message": "m",
        "lastTransitionTime": "2027-01-01T00:00:00Z",
    }
    conditions = [
        *status.status_of(made).conditions,
        msgspec.convert(condition, type(status.status_of(made).conditions[0])),
    ]
    return status.with_status(made, conditions=conditions)


def names(pods: tuple[PodObject, ...]) -> list[str]:
    """Of the workers: the store goes with them."""
    return [pod.metadata.name for pod in pods if pod.is_worker]
