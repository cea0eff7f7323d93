"""What the API server answers, as what a user can do about it."""

from __future__ import annotations

import re

from orchestra.api.engine import EngineError, NotFound
from orchestra.api.problem import Invalid, Problem
from orchestra.kube.errors import ApiError, KubeError, Unreachable

_NOISE = re.compile(r'^(Invalid value|Required value|Unsupported value|Duplicate value|Forbidden): ("object": |"": )?')
_NO_KIND = "could not find the requested resource"


def told(error: KubeError, server: str) -> Exception:
    """The same failure for people: `Invalid` with field paths, `NotFound`, or an `EngineError` with its mend."""
    if isinstance(error, Unreachable):
        reason = str(error).partition(": ")[2] or str(error)
        return EngineError(f"the cluster at {server} does not answer: {reason}; --local is this machine")
    if not isinstance(error, ApiError):
        return EngineError(str(error))
    message = error.refusal.message
    if error.code == 401:
        return EngineError(
            f"the cluster at {server} does not know you (401): log in again, or choose another --context"
        )
    if error.code == 403 and "admission webhook" in message:  # somebody's rule, and nobody's missing right
        return EngineError(f"the cluster refused: {message}")
    if error.code == 403:
        return EngineError(f"not allowed: {message}; ask for the ClusterRole orchestra-user in that namespace")
    if error.code == 404 and (_NO_KIND in message or "page not found" in message):
        return EngineError(
            "Orchestra is not installed in this cluster; orchestra install does it, orchestra doctor checks"
        )
    if error.code == 404:
        return NotFound(message)
    if error.code in (400, 422):
        return Invalid(problems(error))
    return EngineError(f"the cluster refused ({error.code} {error.refusal.reason}): {message}")


def problems(error: ApiError) -> list[Problem]:
    """Each of the server's reasons with its field, in the words of our own rules where it used them."""
    found = []
    for cause in error.refusal.causes:
        if cause.field == "<nil>":  # "some validation rules were not checked because the object was invalid"
            continue
        words = _NOISE.sub("", cause.message)
        reason, _, mend = words.partition("; ")
        found.append(Problem(cause.field, reason, mend))
    return found or [Problem("", error.refusal.message)]
