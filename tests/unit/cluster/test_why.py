"""Why a job is where it is, from objects as a cluster shows them (messages as Kubernetes 1.35 writes them)."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from builders import a_job, a_queue
from orchestra.api.engine import Cause
from orchestra.api.job import Failure, RestartBudget, TorchrunJob
from orchestra.api.kubernetes import Condition
from orchestra.api.queue import TorchrunQueueStatus
from orchestra.cluster.kinds import Claim, ClusterEvent, Node, Pod
from orchestra.cluster.why import (
    GANG_RELEASED,
    HALF_GANG,
    NEVER_FITS,
    QUEUE_LIMIT,
    QUOTA_EXCEEDED,
    Observed,
    causes,
)
from orchestra.operator import half_gangs, placement, quotas
from orchestra.operator.queueing import line
from orchestra.plan import status

NOW = 1_800_000_000.0
NO_GPUS = (
    "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 Insufficient nvidia.com/gpu. no new claims to "
    "deallocate, preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is "
    "not helpful for scheduling."
)


def job_in(phase: str | None, reason: str = "Starting", message: str = "", **spec: Any) -> TorchrunJob:
    made = a_job("train", numGPUs=16, **spec)
    meta = msgspec.structs.replace(made.metadata, uid="job-uid", creation_timestamp=status.timestamp(NOW - 60))
    made = status.with_status(msgspec.structs.replace(made, metadata=meta), attempt=1, gpus=16)
    return made if phase is None else status.in_phase(made, phase, reason, message, NOW - 30)  # type: ignore[arg-type]


def a_pod(index: int, *, phase: str = "Pending", waiting: dict[str, str] | None = None, unscheduled: str = "",
          claim: str = "", node: str = "", gpus: str = "8", selector: dict[str, str] | None = None) -> Pod:  # fmt: skip
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unscheduled}]
    state = {"waiting": waiting} if waiting else {"running": {"startedAt": "2027-01-15T08:00:00Z"}}
    body = {
        "metadata": {"name": f"train-{index}", "uid": f"pod-{index}", "labels": {"torchrun.ai/role": "worker"}},
        "spec": {
            "nodeName": node,
            "nodeSelector": selector or {},
            "containers": [{"name": "trainer", "image": "registry.example/train:1",
                            "resources": {"requests": {"nvidia.com/gpu": gpus}}}],
            "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}}] if claim else [],
        },
        "status": {
            "phase": phase,
            "conditions": conditions if unscheduled else [],
            "containerStatuses": [{"name": "trainer", "state": state}] if waiting or phase == "Running" else [],
        },
    }  # fmt: skip
    return msgspec.convert(body, Pod)


def a_node(name: str, gpus: str = "8", *, ready: bool = True, **spec: Any) -> Node:
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    body = {
        "metadata": {"name": name, "labels": {"zone": "a"}},
        "spec": spec,
        "status": {"allocatable": {"nvidia.com/gpu": gpus, "cpu": "64"}, "conditions": conditions},
    }
    return msgspec.convert(body, Node)


def a_warning(uid: str, reason: str, message: str, seconds_ago: int = 5) -> ClusterEvent:
    body = {
        "metadata": {"name": f"{uid}.{reason}.{seconds_ago}"},
        "involvedObject": {"uid": uid},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "lastTimestamp": status.timestamp(NOW - seconds_ago),
    }
    return msgspec.convert(body, ClusterEvent)


def why(job: TorchrunJob, **seen: Any) -> list[Cause]:
    return causes(Observed(job=job, namespace="team", now=NOW, **seen))


def test_a_queue_that_is_missing_is_named_with_those_there_are() -> None:
    (cause,) = why(job_in("Pending", "QueueNotFound", "m", jobQueue="h10"), queues=(a_queue("h100"), a_queue("a10")))
    assert cause.about == "queue"
    assert "there is no TorchrunQueue h10 in team or orchestra-queues; there are: a10, h100" in cause.message
    assert "did you mean h100?" in cause.mend
    (cause,) = why(job_in("Pending", "QueueNotFound", "m", jobQueue="zz"))
    assert "there is none" in cause.message
    assert "did you mean" not in cause.mend


def test_the_line_of_a_queue_in_numbers_and_who_could_make_room() -> None:
    holder = status.with_status(status.in_phase(a_job("holder"), "Running", "r", "m", NOW), gpus=16)
    line = "number 2 in the line of queue queue: wants 16 GPUs, 16 of 24 GPUs are in use; ahead: other"
    (cause,) = why(job_in("Queued", "QueueLimit", line), others=(holder,))
    assert (cause.about, cause.message) == ("queue", f"{line}; GPUs are held by holder (16)")
    assert cause.mend == "orchestra suspend holder, or wait"


def test_other_reasons_to_wait_keep_the_operators_words() -> None:
    short = "quota small: requests.nvidia.com/gpu: the job needs 16, 8 of 16 are used"
    (cause,) = why(job_in("Queued", "QuotaExceeded", short))
    assert (cause.about, short in cause.message) == ("queue", True)
    assert cause.mend.endswith("kubectl -n team describe resourcequota")
    assert [one.about for one in why(job_in("Queued", "GangReleased", "gave its places back"))] == ["gang"]
    assert [one.about for one in why(job_in("Queued", "NeverFits", "can never fit"))] == ["queue"]
    (cause,) = why(job_in("Queued", "PodSecurity", "violates PodSecurity restricted"))
    assert (cause.about, cause.message) == ("job", "PodSecurity: violates PodSecurity restricted")
    job = job_in("Provisioning")
    half = Condition("Scheduled", "False", "HalfGang", "1 of 2 workers have a node", status.timestamp(NOW))
    job = status.with_status(job, conditions=[*status.status_of(job).conditions, half])
    pods = (a_pod(0, phase="Running"), a_pod(1, unscheduled=NO_GPUS))
    assert [one.about for one in why(job, pods=pods)] == ["gang", "nodes"]


def test_a_queue_that_is_not_well_is_told_first() -> None:
    said = "this cluster does not serve KAI's Queue; install KAI, or remove spec.kaiQueue"
    conditions = [
        Condition(kind, "False", "KaiNotInstalled", said, status.timestamp(NOW)) for kind in ("KaiQueueReady", "Ready")
    ]
    unwell = TorchrunQueueStatus(phase="Degraded", conditions=conditions)
    queue = msgspec.structs.replace(a_queue("queue"), status=unwell)
    first, second = why(job_in("Queued", "Refused", "404 page not found"), queues=(queue,))
    assert (first.about, first.message) == ("queue", f"queue queue: KaiNotInstalled: {said}")
    assert (second.about, second.message) == ("job", "Refused: 404 page not found")
    assert [one.about for one in why(job_in("Succeeded"), queues=(queue,))] == ["job"]


def test_the_reasons_are_those_that_the_operator_gives() -> None:
    assert (half_gangs.RELEASED, placement.HALF, quotas.EXCEEDED) == (GANG_RELEASED, HALF_GANG, QUOTA_EXCEEDED)
    told = inspect.getsource(line)
    assert f'"{QUEUE_LIMIT}"' in told
    assert f'"{NEVER_FITS}"' in told


def test_no_node_fits_with_each_nodes_numbers() -> None:
    nodes = (a_node("n0"), a_node("n1", taints=[{"key": "maintenance", "effect": "NoSchedule"}]))
    placed = (a_pod(7, phase="Running", node="n0", gpus="6"),)
    pods = (a_pod(0, unscheduled=NO_GPUS), a_pod(1, unscheduled=NO_GPUS))
    (cause,) = why(job_in("Provisioning"), pods=pods, nodes=nodes, placed=placed)
    assert cause.about == "nodes"
    assert cause.message == (
        "train-0, train-1 (each asks for 8 GPUs) fit nowhere: 0/2 nodes are available: 1 node(s) had untolerated "
        "taint(s), 1 Insufficient nvidia.com/gpu. Nodes: n0 2 of 8 GPUs free; n1 8 of 8 GPUs free, taint "
        "maintenance:NoSchedule"
    )
    assert "ask for less" in cause.mend


def test_without_the_right_to_read_nodes_it_says_so_instead_of_guessing() -> None:
    (cause,) = why(job_in("Provisioning"), pods=(a_pod(0, unscheduled=NO_GPUS),))
    assert "you may not read nodes" in cause.message


def test_nodes_that_are_down_cordoned_or_lack_a_label_say_so() -> None:
    message = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
    nodes = (a_node("n0", ready=False), a_node("n1", unschedulable=True), a_node("n2"))
    pods = (a_pod(0, unscheduled=message, selector={"zone": "b"}),)
    (cause,) = why(job_in("Provisioning"), pods=pods, nodes=nodes, placed=())
    assert "n0 8 of 8 GPUs free, not ready, lacks label zone=b" in cause.message
    assert "n1 8 of 8 GPUs free, cordoned" in cause.message
    assert "nodeSelector" in cause.mend


def test_a_gang_is_placed_together_or_not_at_all() -> None:
    message = "0/2 nodes are available: pod group team/train-x-1 has less than 3 minAvailable pods. preemption: none"
    pods = tuple(a_pod(index, unscheduled=message) for index in range(3))
    first, second = why(job_in("Provisioning"), pods=pods, nodes=(a_node("n0"),), placed=())
    assert (first.about, second.about) == ("gang", "nodes")
    assert "all 3 workers are placed together or not at all" in first.message
    assert second.message == "Nodes: n0 8 of 8 GPUs free"


def test_a_claim_that_nobody_answers_comes_with_its_event_and_not_with_the_nodes() -> None:
    claim = msgspec.convert(
        {
            "metadata": {"name": "train-checkpoints", "uid": "claim-uid"},
            "spec": {"storageClassName": "local", "accessModes": ["ReadWriteMany"]},
            "status": {"phase": "Pending"},
        },
        Claim,
    )
    unbound = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/2 nodes ..."
    pods = (a_pod(0, unscheduled=unbound, claim="train-checkpoints"),)
    refused = a_warning("claim-uid", "ProvisioningFailed", "this class cannot do ReadWriteMany")
    (cause,) = why(job_in("Provisioning"), pods=pods, claims=(claim,), events=(refused,))
    assert cause.about == "volumes"
    assert cause.message == (
        "claim train-checkpoints (ReadWriteMany on class local) is Pending: this class cannot do ReadWriteMany"
    )
    waits_for_its_first_pod = why(job_in("Provisioning"), pods=(a_pod(0, claim="train-checkpoints"),), claims=(claim,))
    assert [cause.about for cause in waits_for_its_first_pod] == ["container"]


def test_a_claim_that_does_not_exist() -> None:
    pods = (a_pod(0, unscheduled='persistentvolumeclaim "data" not found', claim="data"),)
    assert why(job_in("Provisioning"), pods=pods)[-1].message == "there is no claim data in team"


def test_an_image_that_cannot_be_pulled_comes_with_the_registrys_words() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.example/train:1"'}
    said = 'Failed to pull image "registry.example/train:1": rpc error: code = NotFound: manifest unknown'
    pods = (a_pod(0, waiting=waiting), a_pod(1, waiting={"reason": "ErrImagePull", "message": "manifest unknown"}))
    (cause,) = why(job_in("Provisioning"), pods=pods, events=(a_warning("pod-0", "Failed", said),))
    assert cause.about == "image"
    assert cause.message == f"train-0, train-1: ImagePullBackOff: image registry.example/train:1: {said}"
    assert "imagePullSecrets" in cause.mend


def test_a_secret_that_is_missing_comes_with_the_command_that_makes_it() -> None:
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "wandb" not found'}
    (cause,) = why(job_in("Provisioning"), pods=(a_pod(0, waiting=waiting), a_pod(1, phase="Running")))
    assert (cause.about, cause.message) == (
        "container",
        'train-0: CreateContainerConfigError: secret "wandb" not found',
    )
    assert cause.mend == "kubectl -n team create secret generic wandb --from-literal=KEY=VALUE"


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (Failure(3, "1", 1, "Exception", "ValueError: boom"), "Exception on rank 3, exit code 1: ValueError: boom"),
        (Failure(reason="Hang", rank=0, message="no step for 600 s; rank 5 waits in all_reduce"), "Hang on rank 0: no"),
        (Failure(reason="NodeLost", message="node n1 is gone"), "NodeLost on the job: node n1 is gone"),
    ],
)
def test_what_ended_it_is_the_rank_that_failed_first(failure: Failure, words: str) -> None:
    (cause,) = why(status.with_status(job_in("Failed", "BackoffLimit", "m"), failure=failure))
    assert cause.about == "rank"
    assert cause.message.startswith(words)
    assert cause.mend == "orchestra logs train"


def test_the_attempt_before_is_told_after_what_it_waits_for_now() -> None:
    waiting = {"reason": "ErrImagePull", "message": "no such host"}
    job = status.with_status(job_in("Provisioning"), failure=Failure(rank=2, reason="Exception", message="boom\nline"))
    first, second = why(job, pods=(a_pod(0, waiting=waiting),))
    assert (first.about, second.about) == ("image", "rank")
    assert second.message == "the attempt before ended: Exception on rank 2: boom"


def test_plain_states_are_told_plainly() -> None:
    assert "no operator has looked at it since it was created 60 s ago" in why(job_in(None))[0].message
    assert why(job_in(None))[0].mend == "orchestra doctor"
    assert why(job_in("Suspended", "Suspended", "saved at step 7"))[0].mend == "orchestra resume train"
    assert why(job_in("Failed", "Cancelled", "cancelled; saved at step 7"))[0].message == "cancelled; saved at step 7"
    assert "more than 60 s" in why(job_in("Failed", "DeadlineExceeded", "it was active for more than 60 s"))[0].message
    again = status.with_status(
        job_in("Pending", "Restarting", "m"), budget=RestartBudget(not_before=status.timestamp(NOW + 9))
    )
    assert why(again)[0].message == "it starts again in 9 s"
    running = status.with_progress(job_in("Running"), status.progress_from({"step": 3, "totalSteps": 9}))
    assert why(running, pods=(a_pod(0, phase="Running"),))[0].message == "it trains: step 3/9 33%"
    assert "validate" in why(job_in("Pending", "Invalid", "numGPUs: ..."))[0].mend
    refused = "spec.storage.checkpoints: StorageClass local cannot share a volume among 2 nodes (ReadWriteMany)"
    assert why(job_in("Pending", "Invalid", refused))[0].about == "volumes"


def test_pods_that_only_take_their_time_are_no_riddle() -> None:
    pods = (a_pod(0, waiting={"reason": "ContainerCreating", "message": ""}), a_pod(1, phase="Running"))
    (cause,) = why(job_in("Provisioning"), pods=pods)
    assert cause.message == "train-0 are being started; 1 of 2 workers run"
