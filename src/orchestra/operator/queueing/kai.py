"""What a KAI Queue made from a TorchrunQueue looks like, and whose a KAI Queue is. Pure.

It is cluster-wide, so no owner reference can tie it to its TorchrunQueue: annotations say whose it is, and our
finalizer on the TorchrunQueue keeps that true.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from orchestra.api.quantity import Quantity
from orchestra.api.queue import ResourceShare, TorchrunQueueSpec
from orchestra.kube.objects import Metadata
from orchestra.operator.queueing.kinds import KAI_QUEUES, KaiQueue, KaiQueueSpec, KaiResources, KaiShare

OWNER = "torchrun.ai/owner"
OWNER_UID = "torchrun.ai/owner-uid"
_MANAGED = {"app.kubernetes.io/managed-by": "orchestra"}
_OPEN = KaiShare(-1, -1, 1)

Json = dict[str, Any]


def wanted(spec: TorchrunQueueSpec) -> KaiQueueSpec:
    """The KAI Queue that a TorchrunQueue describes, in KAI's units: GPUs, millicores, 10^6 bytes.

    Rounded up: a limit that holds exactly one node must not refuse it for a fraction.
    """
    shares = spec.resources
    resources = KaiResources(
        gpu=_share(shares.gpu, 1, 1), cpu=_share(shares.cpu, 1000, 1), memory=_share(shares.memory, 1, 10**6)
    )
    return KaiQueueSpec(parent_queue=spec.parent_kai_queue, resources=resources)


def _share(share: ResourceShare, times: int, by: int) -> KaiShare:
    def units(amount: Quantity) -> int:
        return -1 if amount.value < 0 else math.ceil(amount.value * times / by)

    return KaiShare(units(share.quota), units(share.limit), share.over_quota_weight)


def owned_by(queue: Metadata) -> dict[str, str]:
    """The annotations that make a KAI Queue a TorchrunQueue's."""
    return {OWNER: f"{queue.namespace}/{queue.name}", OWNER_UID: queue.uid}


def queue_body(name: str, spec: KaiQueueSpec, owner: Metadata) -> Json:
    """A KAI Queue of ours."""
    metadata = {"name": name, "labels": _MANAGED, "annotations": owned_by(owner)}
    return {**_kind(), "metadata": metadata, "spec": msgspec.to_builtins(spec)}


def parent_body(name: str) -> Json:
    """A parent that bounds nothing. Made where there is none, and from then on nobody's."""
    spec = KaiQueueSpec(resources=KaiResources(_OPEN, _OPEN, _OPEN))
    plain = {"resources": msgspec.to_builtins(spec.resources)}
    return {**_kind(), "metadata": {"name": name, "labels": _MANAGED}, "spec": plain}


def _kind() -> Json:
    return {"apiVersion": KAI_QUEUES.api_version, "kind": KAI_QUEUES.kind}


def change(current: KaiQueue, spec: KaiQueueSpec, owner: Metadata) -> Json:
    """The patch that makes it this owner's, as described; refused by the server if it changed meanwhile."""
    meta = current.metadata
    metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": owned_by(owner)}
    return {"metadata": metadata, "spec": msgspec.to_builtins(spec)}


def differences(ours: KaiQueueSpec, theirs: KaiQueueSpec) -> str:
    """In words: `gpu.quota 4 and not 8`."""
    found = []
    if ours.parent_queue != theirs.parent_queue:
        found.append(f"parent {theirs.parent_queue or 'none'} and not {ours.parent_queue}")
    mine, other = msgspec.to_builtins(ours.resources), msgspec.to_builtins(theirs.resources)
    for kind, share in mine.items():
        for name, value in share.items():
            if other[kind][name] != value:
                found.append(f"{kind}.{name} {other[kind][name]:g} and not {value:g}")
    return ", ".join(found)
