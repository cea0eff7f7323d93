"""Label selectors, as `kubectl get -l` takes them, for jobs that no API server chooses for us."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SPLIT = re.compile(r",(?![^(]*\))")
_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")
_EQUAL = re.compile(r"^([^=!\s]+)\s*(==|=|!=)\s*(\S*)$")


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether labels are those that a selector asks for. Raises `EngineError` for what is none."""
    return all(_one(part.strip(), labels) for part in _SPLIT.split(selector) if part.strip())


def _one(term: str, labels: Mapping[str, str]) -> bool:
    if match := _SET.match(term):
        values = {word.strip() for word in match[3].split(",")}
        return (labels.get(match[1]) in values) == (match[2] == "in")
    if match := _EQUAL.match(term):
        return (labels.get(match[1]) == match[3]) == (match[2] != "!=")
    if re.fullmatch(r"!?[^=!\s()]+", term):
        return (term.removeprefix("!") in labels) != term.startswith("!")
    from orchestra.api.engine import EngineError

    raise EngineError(f"{term!r} is no label selector; write team=a, team!=a, team in (a, b), team or !team")
