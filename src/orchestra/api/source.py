"""YAML as a tree that remembers where each value stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from orchestra.api.problem import Place, Problem

MAX_DEPTH = 64  # deeper than any real manifest; keeps hostile files from exhausting the stack
MAX_NODES = 200_000  # aliases can make a small file huge


@dataclass(frozen=True)
class Node:
    """A value with its place. `value` is a dict of Nodes, a list of Nodes, or a plain scalar."""

    value: Any
    place: Place
    keys: dict[str, Place]
    """For a mapping: where each key stands (an error about a field is shown at its name)."""

    def plain(self) -> Any:
        """The same value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def find(self, path: str) -> Place:
        """The place of a field path such as `spec.env[2].name`; of its nearest given parent if it is absent."""
        node, place = self, self.place
        for step in re.findall(r"[^.\[\]]+|\[\d+\]", path):
            if step.startswith("[") and isinstance(node.value, list):
                index = int(step[1:-1])
                if index >= len(node.value):
                    break
                node = node.value[index]
                place = node.place
            elif isinstance(node.value, dict) and step in node.value:
                place, node = node.keys[step], node.value[step]
            else:
                break
        return place


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: no base-60 numbers, no dates, otherwise as PyYAML does."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith((":timestamp", ":int", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9]*|0x[0-9a-fA-F]+|0o?[0-7]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+.0123456789"),
)


class _Builder:
    """Turns PyYAML's nodes into ours, collecting problems instead of stopping at the first."""

    def __init__(self, file: str, loader: _Loader, problems: list[Problem]) -> None:
        self.file = file
        self.loader = loader
        self.problems = problems
        self.built = 0

    def build(self, node: yaml.Node, depth: int = 0) -> Node:
        place = self.place(node)
        self.built += 1
        if depth > MAX_DEPTH or self.built > MAX_NODES:
            raise _TooLarge(place)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place, depth)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.build(item, depth + 1) for item in node.value], place, {})
        return Node(self._scalar(node, place), place, {})

    def _mapping(self, node: yaml.MappingNode, place: Place, depth: int) -> Node:
        values: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            self.loader.flatten_mapping(node)
        for key_node, value_node in node.value:
            key_place = self.place(key_node)
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                self.problems.append(Problem("", "a key must be a plain word", place=key_place))
                continue
            if key in values:
                self.problems.append(
                    Problem("", f"{key} is given twice", f"keep one (the first is in line {keys[key].line})", key_place)
                )
                continue
            values[key] = self.build(value_node, depth + 1)
            keys[key] = key_place
        return Node(values, place, keys)

    def _scalar(self, node: yaml.Node, place: Place) -> Any:
        try:
            value = self.loader.construct_object(node)
        except (ValueError, yaml.YAMLError):
            self.problems.append(Problem("", f"{node.value!r} cannot be read", "put it in quotes", place))
            return str(node.value)
        return value if isinstance(value, str | int | float | bool | None) else str(node.value)

    def place(self, node: yaml.Node) -> Place:
        return Place(self.file, node.start_mark.line + 1, node.start_mark.column + 1)


class _TooLarge(Exception):
    def __init__(self, place: Place) -> None:
        super().__init__("too large")
        self.place = place


def read_documents(text: str, file: str) -> tuple[list[Node], list[Problem]]:
    """The documents of a YAML text (empty ones left out) and what is wrong with it as YAML."""
    problems: list[Problem] = []
    documents: list[Node] = []
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        builder = _Builder(file, loader, problems)
        while loader.check_node():
            node = loader.get_node()
            if node is not None and not (isinstance(node, yaml.ScalarNode) and node.value == ""):
                documents.append(builder.build(node))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file, 1, 1)
        about = " ".join(part for part in (error.context, error.problem) if part)
        problems.append(Problem("", f"not valid YAML: {about}", "check indentation, colons and quotes", place))
    except yaml.YAMLError as error:  # a forbidden character: has no mark
        problems.append(Problem("", f"not valid YAML: {str(error).splitlines()[0]}", place=Place(file, 1, 1)))
    except _TooLarge as error:
        problems.append(Problem("", "too deep or too large for a manifest", place=error.place))
    finally:
        if loader is not None:
            loader.dispose()
    return documents, problems
