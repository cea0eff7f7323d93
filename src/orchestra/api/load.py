"""Reads manifests: files, folders, standard input; several documents a file; every mistake with its place."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from orchestra.api.base import from_builtins
from orchestra.api.check import check
from orchestra.api.job import TorchrunJob
from orchestra.api.problem import Place, Problem
from orchestra.api.queue import TorchrunQueue
from orchestra.api.rules import broken_rules
from orchestra.api.shape import shape_of
from orchestra.api.source import Node, read_documents
from orchestra.api.spelling import did_you_mean, nearest

_GROUP = "torchrun.ai"
_API_VERSION = "torchrun.ai/v1alpha1"
_KINDS: dict[str, type[TorchrunJob] | type[TorchrunQueue]] = {
    "TorchrunJob": TorchrunJob,
    "TorchrunQueue": TorchrunQueue,
}
# Required fields that are wrong or missing get a stand-in, so that the rest of the object can still be judged.
_STAND_INS = {"name": "x", "jobQueue": "x", "command": "true"}
_MAX_FILE = 16 * 1024 * 1024


T = TypeVar("T", bound=TorchrunJob | TorchrunQueue)


@dataclass(frozen=True)
class Document(Generic[T]):
    """An object and the text it was read from."""

    object: T
    source: Node
    broken: tuple[str, ...] = ()
    """Fields that were left out of `object` because they are wrong: what follows from them is not to be believed."""

    def place(self, path: str) -> Place:
        """Where a field of the object stands in the file."""
        return self.source.find(path)

    def believable(self, problems: Iterable[Problem]) -> list[Problem]:
        """Problems found in `object`, with their places, less those that only echo a broken field."""
        return [
            problem.at(self.place(problem.path))
            for problem in problems
            if not any(_related(problem.path, path) for path in self.broken)
        ]


@dataclass
class Loaded:
    """All that was read: our objects, what is wrong, and what is not ours."""

    jobs: list[Document[TorchrunJob]] = field(default_factory=list)
    queues: list[Document[TorchrunQueue]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    foreign: list[tuple[Place, str]] = field(default_factory=list)
    """Objects of other kinds: left alone, named so that nothing is passed over silently."""


def load(paths: Sequence[str | Path]) -> Loaded:
    """Reads files and folders (`*.yaml`, `*.yml`, `*.json` below them) and `-` for standard input."""
    loaded = Loaded()
    for path in paths:
        for name, text in _texts(str(path), loaded.problems):
            load_text(text, name, loaded)
    _report_twins(loaded)
    loaded.problems.sort(key=lambda problem: (problem.place is None, problem.place))
    return loaded


def load_text(text: str, file: str, into: Loaded | None = None) -> Loaded:
    """Reads one text as if it were a file of that name."""
    loaded = into if into is not None else Loaded()
    nodes, problems = read_documents(text, file)
    loaded.problems += problems
    for node in nodes:
        _load_document(node, loaded)
    return loaded


def _texts(path: str, problems: list[Problem]) -> Iterable[tuple[str, str]]:
    if path == "-":
        yield "<stdin>", sys.stdin.read()
        return
    where = Path(path)
    files = [where]
    if where.is_dir():
        files = sorted(p for p in where.rglob("*") if p.suffix in (".yaml", ".yml", ".json") and p.is_file())
        if not files:
            problems.append(Problem("", "no *.yaml, *.yml or *.json below this folder", place=Place(path, 1, 1)))
    for file in files:
        try:
            if file.stat().st_size > _MAX_FILE:
                raise OSError(f"larger than {_MAX_FILE >> 20} MiB, which is no manifest")
            yield str(file), file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            problems.append(Problem("", f"cannot be read: {reason}", place=Place(str(file), 1, 1)))


def _load_document(node: Node, loaded: Loaded) -> None:
    if not isinstance(node.value, dict):
        loaded.problems.append(Problem("", "is not a Kubernetes object", "begin with apiVersion and kind", node.place))
        return
    if _plain(node, "kind") == "List" and isinstance(getattr(node.value.get("items"), "value", None), list):
        for item in node.value["items"].value:
            _load_document(item, loaded)
        return
    struct = _struct_for(node, loaded)
    if struct is None:
        return
    problems = check(node, shape_of(struct))
    loaded.problems += problems
    broken = [problem.path for problem in problems]
    try:
        thing = from_builtins(_without(node.plain(), broken), struct)
    except msgspec.ValidationError as error:
        if not problems:  # the check is meant to say all of it first, with the place
            loaded.problems.append(Problem("", str(error), place=node.place))
        return
    # A misspelt field stands for the right one too: `numGpus` must not also be "numGPUs is missing".
    meant = [_meant(path, struct) for path in broken]
    distrusted = tuple(sorted({*broken, *(path for path in meant if path)}))
    if isinstance(thing, TorchrunJob):
        job = Document(thing, node, distrusted)
        loaded.jobs.append(job)
        loaded.problems += job.believable(broken_rules(thing))
    else:
        queue = Document(thing, node, distrusted)
        loaded.queues.append(queue)
        loaded.problems += queue.believable(broken_rules(thing))


def _without(data: Any, paths: list[str]) -> Any:
    """`data` less the fields at these paths, so that the rest can still be judged."""
    for path in paths:
        *parents, last = _steps(path) or [""]
        node = data
        for step in parents:
            node = node[step] if isinstance(node, dict) and step in node else None
        if isinstance(node, dict):
            node.pop(last, None)
            if last in _STAND_INS:
                node[last] = _STAND_INS[last]
    return data


def _steps(path: str) -> list[str]:
    """The named steps of a path; an item of a list stands for the whole list."""
    return path.split("[")[0].split(".")


def _meant(path: str, struct: type[TorchrunJob] | type[TorchrunQueue]) -> str | None:
    shape: Any = shape_of(struct)
    *parents, last = _steps(path)
    for step in parents:
        known = getattr(shape, "fields", {}).get(step)
        if known is None:
            return None
        shape = known.shape
    guess = nearest(last, getattr(shape, "fields", {}))
    return ".".join([*parents, guess]) if guess else None


def _related(one: str, other: str) -> bool:
    """Whether one path lies within the other."""
    first, second = _steps(one), _steps(other)
    shorter = min(len(first), len(second))
    return first[:shorter] == second[:shorter]


def _struct_for(node: Node, loaded: Loaded) -> type[TorchrunJob] | type[TorchrunQueue] | None:
    kind, version = _plain(node, "kind"), _plain(node, "apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        missing = "kind" if not isinstance(kind, str) else "apiVersion"
        loaded.problems.append(Problem(missing, "is missing", f"apiVersion: {_API_VERSION}", node.place))
        return None
    ours = version.split("/")[0] == _GROUP or nearest(kind, _KINDS) is not None
    if not ours:
        loaded.foreign.append((node.place, f"{version} {kind}"))
        return None
    before = len(loaded.problems)
    if version != _API_VERSION:
        loaded.problems.append(
            Problem("apiVersion", f"{version!r} is not known", f"write {_API_VERSION}", node.keys["apiVersion"])
        )
    if kind not in _KINDS:
        loaded.problems.append(Problem("kind", f"{kind!r} is not known", did_you_mean(kind, _KINDS), node.keys["kind"]))
    return _KINDS[kind] if len(loaded.problems) == before else None


def _plain(node: Node, key: str) -> Any:
    return node.value[key].value if key in node.value else None


def _report_twins(loaded: Loaded) -> None:
    seen: dict[tuple[str, str | None, str], Place] = {}
    documents: list[Document[Any]] = [*loaded.queues, *loaded.jobs]
    for document in documents:
        meta = document.object.metadata
        identity = (document.object.kind, meta.namespace, meta.name)
        place = document.place("metadata.name")
        if identity in seen:
            loaded.problems.append(
                Problem("metadata.name", f"{meta.name!r} is defined twice", f"the first is at {seen[identity]}", place)
            )
        seen.setdefault(identity, place)
