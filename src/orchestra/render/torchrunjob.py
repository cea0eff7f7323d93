"""Target `torchrunjob`: our own kinds in their normalised form."""

from __future__ import annotations

from typing import Any

from orchestra.api.base import to_builtins
from orchestra.api.job import TorchrunJob
from orchestra.api.queue import QueueResources, TorchrunQueue
from orchestra.render.model import Manifest

_FLAT = ("restartPolicy", "maxRestarts", "ttlSecondsAfterFinished", "activeDeadlineSeconds")
_NO_QUOTAS: dict[str, Any] = to_builtins(QueueResources())
_SERVERS_OWN = (
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "ownerReferences",
    "finalizers",
    "selfLink",
)


def torchrunjob(queue: TorchrunQueue, job: TorchrunJob) -> list[Manifest]:
    """Queue and job, one spelling for each thing: no defaults written out, nothing that a server adds."""
    return [_normal(queue, "TorchrunQueue"), _normal(job, "TorchrunJob")]


def _normal(thing: TorchrunQueue | TorchrunJob, kind: str) -> Manifest:
    plain: dict[str, Any] = to_builtins(thing)
    metadata = {name: value for name, value in plain["metadata"].items() if name not in _SERVERS_OWN}
    spec = dict(plain["spec"])
    if spec.get("resources") == _NO_QUOTAS:
        del spec["resources"]
    flat = {name: spec.pop(name) for name in _FLAT if name in spec}
    if flat:
        spec["lifecycle"] = {**spec.get("lifecycle", {}), **flat}
    return {"apiVersion": "torchrun.ai/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
