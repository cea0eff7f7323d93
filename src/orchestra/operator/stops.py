"""Ending a pod without losing its log."""

from __future__ import annotations

from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError
from orchestra.kube.expectations import Expectations
from orchestra.kube.objects import PODS, MetadataOnly
from orchestra.kube.writes import NotControlled, delete_owned
from orchestra.operator.kinds import PodObject

_NOW = 1


async def stop_owned(
    client: Client, pod: PodObject, *, owner_uid: str, expectations: Expectations[PodObject] | None = None
) -> None:
    """Ends a pod as its deletion would (SIGTERM, the grace period, SIGKILL), but the pod stays, and so does its log.

    A deadline that is over makes the kubelet do that. A pod that has not run has no log, and is deleted.
    """
    meta = pod.metadata
    if pod.status.phase != "Running":
        await delete_owned(client, PODS, meta, owner_uid=owner_uid, expectations=expectations)
        return
    if meta.controller_uid != owner_uid:
        raise NotControlled(f"{meta.key} is not controlled by {owner_uid}")
    if pod.spec.active_deadline_seconds == _NOW:
        return
    body = {"metadata": {"uid": meta.uid}, "spec": {"activeDeadlineSeconds": _NOW}}
    try:
        await client.patch(PODS, meta.key, body, MetadataOnly)
    except ApiError as error:
        if not error.not_found and not error.conflict:  # it is gone, or another one has its name
            raise
