"""Reads what a gang scheduler says about a whole gang, where its pods do not say it."""

from __future__ import annotations

from dataclasses import replace

from orchestra.kube.client import Client
from orchestra.kube.errors import KubeError
from orchestra.kube.objects import Key, Metadata
from orchestra.operator import gangs
from orchestra.operator.decision import Observation
from orchestra.operator.kinds import KAI_POD_GROUPS, GroupCondition, GroupObject
from orchestra.plan import status

_UNSCHEDULABLE = "UnschedulableOnNodePool"


class GangReader:
    """Asks for one PodGroup, and only while somebody waits without a word: KAI writes the same text on the pods."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def look(self, seen: Observation) -> Observation:
        """The observation with the group's own condition, if that is all there is."""
        current = status.status_of(seen.job)
        if seen.plan is None or seen.plan.gang.scheduler != "kai" or current.phase != "Provisioning":
            return seen
        unbound = [pod for pod in seen.pods if pod.is_worker and not pod.spec.node_name]
        silent = all(condition.type != "PodScheduled" for pod in unbound for condition in pod.status.conditions)
        if not unbound or not silent:
            return seen
        meta = seen.job.metadata
        job = Metadata(name=meta.name, namespace=meta.namespace or "", uid=meta.uid or "")
        key = Key(job.namespace, gangs.group_name(job, current.attempt or 1))
        try:
            found = await self._client.find(KAI_POD_GROUPS, key, GroupObject)
        except KubeError:
            return seen  # it only enriches the message
        return replace(seen, group=_said(found)) if found is not None else seen


def _said(group: GroupObject) -> GroupCondition | None:
    said = [one for one in group.status.scheduling_conditions if one.type == _UNSCHEDULABLE]
    return said[-1] if said else None
