"""Whether jobs can be made from a queue: our own reading, and a trial pod that the API server judges."""

from __future__ import annotations

from typing import Any

from orchestra.api.job import TorchrunJob, TorchrunJobSpec
from orchestra.api.kubernetes import ObjectMeta
from orchestra.api.problem import Invalid, Problem
from orchestra.api.queue import TorchrunQueue, TorchrunQueueSpec
from orchestra.api.template import ClaimedStorage, Storage
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError
from orchestra.kube.objects import PODS, MetadataOnly
from orchestra.operator import pods
from orchestra.operator.attempt import plan_attempt
from orchestra.operator.queueing.kinds import Classes
from orchestra.plan.volumes import is_on

TRIAL = "orchestra-check"
_NO_IMAGE = "orchestra.invalid/none"
_NOT_OF_THE_QUEUE = ("serviceAccountName", "priorityClassName", "imagePullSecrets")
_UNREADABLE = "cannot be handled as a Pod"


async def template_problems(client: Client, namespace: str, name: str, spec: TorchrunQueueSpec) -> list[Problem]:
    """What keeps every job of this queue from running. Asks the API server, which keeps nothing of it."""
    made = trial_pod(name, spec)
    if isinstance(made, list):
        return made
    try:
        await client.create(PODS, namespace, made, MetadataOnly, dry_run=True)
    except ApiError as error:
        if error.code == 422 or (error.code == 400 and _UNREADABLE in error.refusal.message):
            mend = "mend the field of this queue that it comes from"
            said = f"the API server refuses pods made from this queue: {error.refusal.message}"
            return [Problem("spec.podTemplate" if spec.pod_template else "spec", said, mend)]
        if error.code >= 500 or error.code == 429:
            raise
        # Quotas, pod security and admission of this namespace: jobs may live in another one.
    return []


def trial_pod(name: str, spec: TorchrunQueueSpec) -> dict[str, Any] | list[Problem]:
    """A worker of the smallest job, without what is looked up in the job's own namespace; or why there is none."""
    queue = TorchrunQueue(metadata=ObjectMeta(name=name), spec=spec)
    job = TorchrunJob(
        metadata=ObjectMeta(name=TRIAL),
        spec=TorchrunJobSpec(job_queue=name, command=["true"], launcher="none", num_nodes=1),
    )
    try:
        made = plan_attempt(queue, job, TRIAL, 1)
    except Invalid as invalid:
        return invalid.problems
    pod = pods.worker_pod(made, 0, 1, TRIAL, {})
    metadata = {key: value for key, value in pod["metadata"].items() if key != "ownerReferences"}
    inside = {key: value for key, value in pod["spec"].items() if key not in _NOT_OF_THE_QUEUE}
    for container in inside["containers"]:
        if container.get("name") == "trainer":
            container.setdefault("image", _NO_IMAGE)
    return {**pod, "metadata": metadata, "spec": inside}


def missing_references(spec: TorchrunQueueSpec, classes: Classes) -> list[Problem]:
    """Classes of the cluster that the queue names and that are not there."""
    problems = []
    scheduling = spec.scheduling
    priority = scheduling.priority_class_name if scheduling else None
    if priority and classes.priorities is not None:
        there = sorted(one.metadata.name for one in classes.priorities if not one.metadata.name.startswith("system-"))
        if priority not in there and not priority.startswith("system-"):
            reason = f"there is no PriorityClass {priority}"
            problems.append(Problem("spec.scheduling.priorityClassName", reason, _create_it(there)))
    if classes.storage is not None:
        there = sorted(one.metadata.name for one in classes.storage)
        for purpose, block in _claimed(spec.storage or Storage()):
            if block.storage_class and block.storage_class not in there:
                where = f"spec.storage.{purpose}.storageClass"
                problems.append(Problem(where, f"there is no StorageClass {block.storage_class}", _create_it(there)))
    return problems


def _claimed(storage: Storage) -> list[tuple[str, ClaimedStorage]]:
    """The blocks that a claim would be made from."""
    blocks = {"workspace": storage.workspace, "checkpoints": storage.checkpoints, "models": storage.models}
    return [(name, one) for name, one in blocks.items() if one is not None and is_on(one) and not one.claim_name]


def _create_it(there: list[str]) -> str:
    few = ", ".join(there[:5])
    return f"create it, or use one that exists: {few}" if few else "create it, or remove the field"
