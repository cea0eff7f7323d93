"""What a target cannot say. Nothing is dropped silently: each field that somebody gave and that gets lost is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from orchestra.api.base import to_builtins
from orchestra.api.job import TorchrunJob
from orchestra.api.queue import QueueResources, TorchrunQueue
from orchestra.plan.model import Plan
from orchestra.render.model import Target, Unexpressed
from orchestra.render.steps import can_aws

_OPERATOR = "only Orchestra's operator does this"
_FLAT = ("ttlSecondsAfterFinished", "activeDeadlineSeconds")

# Fields that some targets have no place for: path, the targets that do, why not, and what to do instead.
_FIELDS: tuple[tuple[str, tuple[Target, ...], str, str], ...] = (
    ("lifecycle.nodeLostSeconds", (), _OPERATOR, "Kubernetes gives a silent machine up after five minutes"),
    ("lifecycle.pendingTimeoutSeconds", (), _OPERATOR, "the pods wait for ever"),
    (
        "lifecycle.ttlSecondsAfterFinished",
        ("job", "pytorchjob"),
        "this kind is not removed by itself",
        "delete it by hand, or use --target job",
    ),
    (
        "lifecycle.activeDeadlineSeconds",
        ("job", "pytorchjob", "trainjob"),
        "a StatefulSet has no deadline",
        "use --target job",
    ),
    ("suspend", ("job", "pytorchjob", "trainjob"), "a StatefulSet cannot be suspended", "it is rendered with 0 pods"),
    (
        "elastic",
        ("statefulset", "pytorchjob"),
        "the number of pods is fixed: it can shrink but not grow",
        "use --target statefulset or pytorchjob",
    ),
)


def unexpressed(queue: TorchrunQueue, job: TorchrunJob, plan: Plan, target: Target, plain: bool) -> list[Unexpressed]:
    """Every field of queue or job that the target loses."""
    found = Given(queue, job)
    return [
        *_by_target(found, target),
        *_gang(found, plan, target),
        *_hang(found, plain),
        *_rendezvous(found, plan),
        *_code(found, plan),
        *_sync(found, plan),
        *_claims(found, plan),
        *_quotas(found, queue),
    ]


class Given:
    """What queue and job say themselves, before any default."""

    def __init__(self, queue: TorchrunQueue, job: TorchrunJob) -> None:
        self._job: dict[str, Any] = to_builtins(job.spec)
        self._queue: dict[str, Any] = to_builtins(queue.spec)

    def by(self, path: str) -> tuple[str, Literal["TorchrunJob", "TorchrunQueue"]] | None:
        """Where a field was given: its path as written, and by which object. The job's word counts first."""
        flat = path.removeprefix("lifecycle.")
        if flat in _FLAT and flat in self._job:
            return f"spec.{flat}", "TorchrunJob"
        if _has(self._job, path):
            return f"spec.{path}", "TorchrunJob"
        return (f"spec.{path}", "TorchrunQueue") if _has(self._queue, path) else None

    def lost(self, path: str, reason: str, mend: str) -> Iterator[Unexpressed]:
        """A warning about the field, if anybody gave it."""
        given = self.by(path)
        if given is not None:
            yield Unexpressed(given[0], reason, mend, kind=given[1])


def _has(spec: dict[str, Any], path: str) -> bool:
    value: Any = spec
    for step in path.split("."):
        if not isinstance(value, dict) or step not in value:
            return False
        value = value[step]
    return value not in (False, [], {})


def _by_target(found: Given, target: Target) -> Iterator[Unexpressed]:
    for path, able, reason, mend in _FIELDS:
        if target not in able:
            yield from found.lost(path, reason, mend)


def _gang(found: Given, plan: Plan, target: Target) -> Iterator[Unexpressed]:
    if plan.gang.scheduler == "kai":
        yield from found.lost("kaiQueue", "the KAI queue itself is not rendered", "it must exist in the cluster")
    if plan.gang.scheduler != "coscheduling" or target == "pytorchjob":
        yield from found.lost("lifecycle.gangTimeoutSeconds", "no gang scheduler here takes a timeout", "remove it")
    if plan.gang.scheduler == "coscheduling" and target == "pytorchjob":
        mend = "start the training operator with --gang-scheduler-name=scheduler-plugins-scheduler"
        path = "scheduling.gang" if found.by("scheduling.gang") else "overrides.gang"
        yield from found.lost(path, "the training operator makes the gang itself, if it is told to", mend)


def _hang(found: Given, plain: bool) -> Iterator[Unexpressed]:
    if plain:
        path = "lifecycle.hangTimeoutSeconds"
        yield from found.lost(path, "a shell script does not notice a hang", "render without --plain")


def _rendezvous(found: Given, plan: Plan) -> Iterator[Unexpressed]:
    if plan.launch.launcher == "deepspeed":
        for name in ("rdzvBackend", "rdzvEndpoint"):
            reason = "deepspeed meets at the first node, without a store"
            yield from found.lost(f"distributed.{name}", reason, "remove it, or launch with torchrun")
    elif plan.rendezvous.backend == "static":
        yield from found.lost(
            "distributed.rdzvEndpoint", "static meets at the first node, without a store", "remove it"
        )


def _code(found: Given, plan: Plan) -> Iterator[Unexpressed]:
    code = plan.code
    if code is None:
        return
    path = "workspace" if found.by("workspace") else "storage.workspace"
    if code.source == "local":
        mend = "put the code into the image, sync.code or git; or fill the folder with kubectl cp"
        yield from found.lost(path, "a manifest does not carry your folder along", mend)
    if code.source == "s3" and not can_aws(code.url):
        yield from found.lost(f"{path}.url", "only s3:// can be fetched by `aws s3 sync`", "use an s3:// URL")
    if code.source == "git" and code.secret_name:
        mend = "put the credentials into the image or the URL's helper"
        yield from found.lost(f"{path}.secretName", "`git clone` in the pod has no place for credentials", mend)
    if code.snapshot:
        yield from found.lost("workspace.snapshot", "snapshots live in Orchestra's own store", "use sync.code")


def _sync(found: Given, plan: Plan) -> Iterator[Unexpressed]:
    sync = plan.sync
    if sync is None:
        return
    for name, url in (("code", sync.code), ("data", sync.data), ("output", sync.output)):
        if url and not can_aws(url):
            yield from found.lost(f"sync.{name}", "only s3:// can be reached by `aws s3 sync`", "use an s3:// URL")
    if sync.data and any(volume.purpose == "datasets" and volume.read_only for volume in plan.volumes):
        yield from found.lost("sync.data", "the datasets' claim is read-only", "drop one of the two")


def _claims(found: Given, plan: Plan) -> Iterator[Unexpressed]:
    for volume in plan.volumes:
        path = f"storage.{volume.purpose}"
        if volume.exists:
            continue
        fetched = volume.purpose == "workspace" and plan.code is not None and plan.code.source in ("git", "s3")
        if fetched or (volume.purpose == "workspace" and plan.sync is not None and plan.sync.code):
            for name in ("storageClass", "accessModes"):
                yield from found.lost(f"{path}.{name}", "each node fetches its own copy, without a claim", "remove it")
        if volume.purpose != "workspace" and not volume.retain:
            yield from _not_retained(found, f"{path}.retain")


def _not_retained(found: Given, path: str) -> Iterator[Unexpressed]:
    kind: Literal["TorchrunJob", "TorchrunQueue"] = (
        "TorchrunJob" if found.by(path.rpartition(".")[0]) else "TorchrunQueue"
    )
    yield Unexpressed(f"spec.{path}", "nobody deletes the claim with the job", "delete it by hand", kind=kind)


def _quotas(found: Given, queue: TorchrunQueue) -> Iterator[Unexpressed]:
    if queue.spec.resources != QueueResources():
        yield from found.lost("resources", "quotas are kept by KAI or by Orchestra's operator", "use a ResourceQuota")
