"""What is known of storage classes, and what is found out when a claim gets no volume."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from orchestra.kube.cache import Cache
from orchestra.kube.client import Client
from orchestra.kube.errors import KubeError
from orchestra.kube.listing import Selection
from orchestra.kube.objects import PODS, VOLUME_CLAIMS, Key, Metadata, Resource, Slim
from orchestra.kube.pods import PodStatus
from orchestra.operator import claims
from orchestra.operator.claims import ClaimObject, StorageClass
from orchestra.operator.decision import Observation
from orchestra.operator.kinds import JOB_LABEL
from orchestra.plan import status

_CORE_EVENTS = Resource("", "v1", "Event", "events")
_REMEMBER = 3600.0  # a class may be mended; then a job pays for finding out again
_FIRST_LOOK, _SLOWEST = 3.0, 60.0
_log = logging.getLogger(__name__)


class _Event(Slim, frozen=True):
    metadata: Metadata
    message: str = ""


class _ClaimUse(Slim, frozen=True):
    claim_name: str = ""


class _PodVolume(Slim, frozen=True):
    persistent_volume_claim: _ClaimUse | None = None


class _PodSpec(Slim, frozen=True):
    volumes: tuple[_PodVolume, ...] = ()


class _Pod(Slim, frozen=True):
    metadata: Metadata
    spec: _PodSpec = _PodSpec()
    status: PodStatus = PodStatus()

    def mounts(self, claim: str) -> bool:
        uses = (one.persistent_volume_claim for one in self.spec.volumes)
        return any(use is not None and use.claim_name == claim for use in uses)


class Storage:
    """Which classes can share a volume among nodes, as far as anybody has found out."""

    def __init__(
        self, client: Client, classes: Cache[StorageClass] | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._classes, self._clock = client, classes, clock
        self._refused: dict[str, tuple[str, float]] = {}
        self._due: dict[str, tuple[float, float]] = {}
        """By the UID of a job that waits: when its claims are asked about, and how long after that again."""

    def knowledge(self, name: str | None) -> tuple[str, str] | None:
        """See `claims.Knowledge`."""
        if name is None:
            name = claims.default_class(self._classes or ())
        if name is None:
            return None
        said, when = self._refused.get(name, ("", 0.0))
        if said and self._clock() - when < _REMEMBER:
            return name, said
        known = self._classes.get(Key("", name)) if self._classes is not None else None
        why = claims.why_not_shared(known) if known is not None else None
        return (name, why) if why is not None else None

    def look_again(self, seen: Observation) -> float | None:
        """Seconds until claims that have no volume yet are asked about; None where there is nothing to find out."""
        due = self._due.get(seen.job.metadata.uid or "")
        return max(0.0, due[0] - self._clock()) if due is not None else None

    async def learn(self, seen: Observation) -> bool:
        """Ask why a claim has no volume; True when a class turned out not to share, and its claims are gone again."""
        if not self._is_due(seen):
            return False
        learned = False
        for name in seen.shared_claims:
            try:
                learned = await self._ask(Key(seen.job.metadata.namespace or "", name)) or learned
            except KubeError as error:
                _log.info("why %s has no volume is not known: %s", name, error)
        return learned

    async def user_of(self, namespace: str, claim: str, owner_uid: str) -> str | None:
        """A pod of another live job that mounts a claim."""
        for pod in await self._client.list_all(PODS, _Pod, Selection(namespace=namespace, labels=JOB_LABEL)):
            ended = pod.status.phase in ("Succeeded", "Failed")
            if not ended and pod.metadata.controller_uid != owner_uid and pod.mounts(claim):
                return pod.metadata.name
        return None

    def _is_due(self, seen: Observation) -> bool:
        """Most claims have their volume at once: only a job that goes on waiting is worth a request, and seldom."""
        uid, now = seen.job.metadata.uid or "", self._clock()
        if not _waits(seen):
            self._due.pop(uid, None)
            return False
        when, pause = self._due.setdefault(uid, (now + _FIRST_LOOK, _FIRST_LOOK))
        if now < when:
            return False
        self._due[uid] = (now + pause, min(2 * pause, _SLOWEST))
        return True

    async def _ask(self, key: Key) -> bool:
        found = await self._client.find(VOLUME_CLAIMS, key, ClaimObject)
        if found is None:
            return True  # it was there before the first pod: taken away, perhaps by us before we could say so
        if found.status.phase != "Pending" or not found.spec.storage_class_name:
            return False
        about = f"involvedObject.uid={found.metadata.uid},reason=ProvisioningFailed"
        events = await self._client.list_all(_CORE_EVENTS, _Event, Selection(namespace=key.namespace, fields=about))
        said = next((one.message for one in events if claims.is_refusal(one.message)), None)
        if said is None:
            return False
        self._refused[found.spec.storage_class_name] = (said, self._clock())
        await self._client.delete(VOLUME_CLAIMS, key, uid=found.metadata.uid)  # it has no volume, and never will
        return True


def _waits(seen: Observation) -> bool:
    phase = status.status_of(seen.job).phase
    if phase == "Syncing" and seen.sync_pod is not None and seen.shared_claims:
        return not seen.sync_pod.spec.node_name
    if phase != "Provisioning" or not seen.shared_claims:
        return False
    return any(pod.is_worker and not pod.spec.node_name for pod in seen.pods)
