"""The shape of a raw pod template: as much of it as we lay our own pod over. The API server judges the rest."""

from __future__ import annotations

from typing import Any

from orchestra.api.problem import Problem

_LISTS = ("volumes", "containers", "initContainers")


def pod_template_problems(template: dict[str, Any] | None, where: str = "spec.podTemplate") -> list[Problem]:
    """What keeps a worker from being made of it."""
    if not template:
        return []
    problems = [
        Problem(f"{where}.{name}", "is not part of a pod template", "only metadata and spec are")
        for name in template
        if name not in ("metadata", "spec")
    ]
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    problems += _map(metadata, f"{where}.metadata") + _map(spec, f"{where}.spec")
    if problems:
        return problems
    for name in ("labels", "annotations"):
        words = metadata.get(name, {})
        if not isinstance(words, dict) or not all(isinstance(value, str) for value in words.values()):
            problems.append(Problem(f"{where}.metadata.{name}", "is not a map of strings", "write name: 'value'"))
    for name in _LISTS:
        problems += _named_list(spec.get(name, []), f"{where}.spec.{name}")
    return problems


def _map(value: Any, where: str) -> list[Problem]:
    return [] if isinstance(value, dict) else [Problem(where, "is not a map", "write it as in a Pod")]


def _named_list(value: Any, where: str) -> list[Problem]:
    if not isinstance(value, list):
        return [Problem(where, "is not a list", "write it as in a Pod")]
    problems = []
    for index, item in enumerate(value):
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            problems.append(Problem(f"{where}[{index}]", "has no name", "each is a map with a name"))
        elif not isinstance(item.get("volumeMounts", []), list):
            problems.append(Problem(f"{where}[{index}].volumeMounts", "is not a list", "write it as in a Pod"))
    return problems
