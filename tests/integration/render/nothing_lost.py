"""Whether a conversion says a word on everything: each value is in the result, or its field is listed."""

from __future__ import annotations

import re
from typing import Any

import yaml

from orchestra.api.base import to_builtins
from orchestra.render.convert import Converted
from orchestra.render.convert.reading import leaves

_SAID_OTHERWISE = (
    ("apiVersion", ""),
    ("kind", ""),
    ("metadata.name", ""),
    (".name", ""),  # of containers, volumes and ports: inner names
    (".replicas", ""),  # summed up as numNodes
    (".restartPolicy", "OnFailure"),  # the default
    (".rdzvBackend", "c10d"),
    (".manager", ""),  # who wrote a patch; what it patches is listed
)
"""Ends of paths whose values (or this value) need not be found again."""


def silently_lost(manifests: list[dict[str, Any]], found: Converted) -> list[str]:
    """`Kind path: value` of each field that is neither in the result nor in a list."""
    result = yaml.safe_dump([to_builtins(found.queue), to_builtins(found.job)], width=10**6).lower()
    said = "\n".join([*found.understood, *found.guessed, *found.left_out])
    lost = []
    for one in manifests:
        for path, value in leaves(one):
            if one["kind"] == "ConfigMap" or (one["kind"].endswith("TrainingRuntime") and path.endswith(".image")):
                continue  # a script is taken apart, not copied; and a job may name an image of its own
            if not _is_said(path, value, said) and not _is_in(value, result + said.lower()):
                lost.append(f"{one['kind']} {path}: {value}")
    return lost


def _is_said(path: str, value: Any, said: str) -> bool:
    if any(path.endswith(end) and only in ("", value) for end, only in _SAID_OTHERWISE):
        return True
    plain = path.removeprefix("spec.")
    steps = [found.end() for found in re.finditer(r"[^.\[]+", plain)]
    return any(plain[:end] in said for end in steps[1:] or steps)


def _is_in(value: Any, text: str) -> bool:
    """Word by word: lists are joined, and lines wrapped, in many ways."""
    words = str(value).lower() if not isinstance(value, list) else " ".join(map(str, value)).lower()
    every = set(re.split(r"[\s\"=\\]+", words)) - {"c10d"}  # the default
    return all(word in text or word.replace("'", "''") in text for word in every)
