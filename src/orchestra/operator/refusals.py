"""What the API server refused, in a word that tells the user whose turn it is. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from orchestra.kube.errors import ApiError, KubeError
from orchestra.kube.writes import Creation, NotOurs
from orchestra.operator.quotas import EXCEEDED

NAME_TAKEN = "NameTaken"
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


def refusal_of_creation(creation: Creation) -> Refused | None:
    """The same for many creates."""
    return refusal_of((error for _, error in creation.errors), creation.strangers)


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
