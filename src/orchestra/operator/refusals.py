"""What the API server refused, in a word that tells the user whose turn it is. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from orchestra.kube.errors import ApiError, KubeError
from orchestra.kube.writes import Child, Creation, NotOurs
from orchestra.operator.kinds import COSCHEDULING_POD_GROUPS, KAI_POD_GROUPS
from orchestra.operator.quotas import EXCEEDED

NAME_TAKEN = "NameTaken"
GANG_SCHEDULER_MISSING = "GangSchedulerMissing"
_FINAL = (400, 403, 404, 413, 422)
_SHORTEST, _LONGEST = 5.0, 300.0


class Refused(Exception):
    """Nothing of this attempt is to stay: the server said no, and asking at once again would change nothing."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason, self.message = reason, message
        super().__init__(f"{reason}: {message}")


def refusal_of(errors: Iterable[KubeError], strangers: Iterable[NotOurs] = ()) -> Refused | None:
    """The first answer that is a no; None where it was only trouble on the way, and trying again makes sense."""
    for stranger in strangers:
        return Refused(NAME_TAKEN, f"{stranger}; rename or remove it, or name the job otherwise")
    for error in errors:
        if isinstance(error, ApiError) and error.code in _FINAL:
            return Refused(_reason(error), error.refusal.message or str(error))
    return None


def refusal_of_creation(creation: Creation, strangers: Iterable[NotOurs] | None = None) -> Refused | None:
    """The same for many creates. `strangers`: only these, where some of them are welcome."""
    for child, error in creation.errors:
        if isinstance(error, ApiError) and _not_served(error):
            return Refused(GANG_SCHEDULER_MISSING, _missing_kind(child))
    return refusal_of((error for _, error in creation.errors), creation.strangers if strangers is None else strangers)


def _not_served(error: ApiError) -> bool:
    """There is no such kind: then not even the answer is of Kubernetes. (A missing namespace is told in its way.)"""
    return error.code == 404 and not error.refusal.reason


def _missing_kind(child: Child) -> str:
    """All kinds that jobs need are Kubernetes' own, but for those of gang schedulers."""
    kind = child.resource
    mend = {
        KAI_POD_GROUPS.group: "install KAI, or take kaiQueue and scheduler kai-scheduler out of the queue",
        COSCHEDULING_POD_GROUPS.group: "install coscheduling, or set scheduling.gang of the queue to none",
    }
    return f"this cluster does not serve {kind.kind} of {kind.api_version}: {mend.get(kind.group, 'install it')}"


def pause(waiting_since: float | None, now: float) -> float:
    """Doubles with the time it has waited already, without counting tries."""
    waited = now - waiting_since if waiting_since is not None else 0.0
    return min(max(_SHORTEST, waited), _LONGEST)


def _reason(error: ApiError) -> str:
    message = error.refusal.message
    if "exceeded quota" in message or "failed quota" in message:
        return EXCEEDED
    if "violates PodSecurity" in message:
        return "PodSecurity"
    if "LimitRange" in message or ("usage per" in message and "is forbidden" in message):
        return "LimitRange"
    return error.refusal.reason or "Refused"
