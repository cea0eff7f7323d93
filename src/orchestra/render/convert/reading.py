"""Taking a foreign object apart. What nobody takes is left over, and is listed: nothing is lost silently."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Raw = dict[str, Any]

_SERVERS_OWN = (
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
    "ownerReferences",
    "finalizers",
    "selfLink",
)
_SAY_NOTHING_EMPTY = (
    "spec",
    "runPolicy",
    "template",
    "metadata",
    "resources",
    "strategy",
    "securityContext",
    "labels",
    "annotations",
    "",
)
_TAKEN_APART = ("StatefulSet", "Job", "PyTorchJob", "TrainJob", "TrainingRuntime", "ClusterTrainingRuntime")


def take(tree: Any, *path: str, default: Any = None) -> Any:
    """The value at a path, removed from the tree with what it leaves empty; the default when there is none."""
    *parents, last = path
    chain = []
    for step in parents:
        chain.append((tree, step))
        tree = tree.get(step) if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or tree.get(last) is None:
        return default
    value = tree.pop(last)
    for parent, step in reversed(chain):
        if parent[step]:
            break
        del parent[step]
    return value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is still there, with its path. An empty object counts: `volcano: {}` says something."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from leaves(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for number, item in enumerate(value):
            if item not in ({}, []):
                yield from leaves(item, f"{path}[{number}]")
    elif value not in (None, {}, []) or (value is not None and path.rpartition(".")[2] not in _SAY_NOTHING_EMPTY):
        yield path, value


@dataclass
class Findings:
    """What is known so far of the job to be."""

    queue: Raw = field(default_factory=dict)
    job: Raw = field(default_factory=dict)
    understood: list[str] = field(default_factory=list)
    guessed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    ours: bool = False
    """Rendered by us: then the conventions of `render` hold."""

    def into(self, which: Raw, path: str, value: Any) -> None:
        """Sets a field of the queue's or job's spec by its dotted path, unless there is nothing to set."""
        if value in (None, {}, []):
            return
        *parents, last = path.split(".")
        for step in parents:
            which = which.setdefault(step, {})
        which[last] = value


class Objects:
    """All objects of a manifest, each to be taken apart."""

    def __init__(self, manifests: list[Raw]) -> None:
        self.all = [copy.deepcopy(one) for one in manifests]
        for one in self.all:
            one.pop("status", None)
            for name in _SERVERS_OWN:
                one.get("metadata", {}).pop(name, None)

    def named(self, kind: str, name: str | None) -> Raw | None:
        """The object of that kind and name."""
        for one in self.all:
            if one.get("kind") == kind and one.get("metadata", {}).get("name") == name:
                return one
        return None

    def remove(self, one: Raw | None) -> None:
        """Counts an object as understood as a whole."""
        self.all = [other for other in self.all if other is not one]

    def leftovers(self) -> list[str]:
        """Every field that nobody took, with its object."""
        found = []
        for one in self.all:
            title = f"{one.get('kind')} {one.get('metadata', {}).get('name', '')}".strip()
            if one.get("kind") not in _TAKEN_APART:
                found.append(f"{title}: not part of a job; keep it if the job refers to it")
                continue
            rest = {name: value for name, value in one.items() if name not in ("kind", "apiVersion")}
            rest["metadata"] = {k: v for k, v in rest.get("metadata", {}).items() if k not in ("name", "namespace")}
            found += [f"{title}: {path}" for path, _ in leaves(rest)]
        return found
