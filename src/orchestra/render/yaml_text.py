"""YAML with comments, from plain dictionaries.

A comment is a key that begins with `#` and stands before the key it explains:

    {"#replicas": "One pod a node.", "replicas": 2}

`{"#": "..."}` explains the object itself. No Kubernetes field begins so, hence the comments survive merging and are
taken off again by `without_comments`. The same input gives the same bytes: keys stay in the order they were given.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

_WIDTH = 110
# Text that another reader of YAML would take for a number, a time or a truth: 3e-3 is text to PyYAML alone.
_AMBIGUOUS = re.compile(r"^[-+]?\.?[0-9][0-9a-fA-FxXoO_.:+-]*$|^[yYnN]$")


def without_comments(value: Any) -> Any:
    """The plain value: what an API server gets."""
    if isinstance(value, dict):
        return {key: without_comments(item) for key, item in value.items() if not str(key).startswith("#")}
    if isinstance(value, list):
        return [without_comments(item) for item in value]
    return value


def to_yaml(value: dict[str, Any]) -> str:
    """One document, without the `---` before it."""
    return "\n".join(_mapping(value, 0)) + "\n"


def _mapping(value: dict[str, Any], indent: int) -> Iterator[str]:
    pad = " " * indent
    if "#" in value:
        yield from _comment(value["#"], indent)
    for key, item in value.items():
        if key.startswith("#"):
            continue
        if f"#{key}" in value:
            yield from _comment(value[f"#{key}"], indent)
        name = _scalar(key)
        if isinstance(item, dict) and without_comments(item):
            yield f"{pad}{name}:"
            yield from _mapping(item, indent + 2)
        elif isinstance(item, list) and item:
            yield f"{pad}{name}:"
            yield from _sequence(item, indent + 2)
        else:
            first, *rest = _leaf(item, indent + 2)
            yield f"{pad}{name}: {first}"
            yield from rest


def _sequence(value: list[Any], indent: int) -> Iterator[str]:
    pad = " " * indent
    for item in value:
        if isinstance(item, dict) and without_comments(item):
            yield from _comment(item.get("#", ""), indent)
            lines = list(_mapping({key: one for key, one in item.items() if key != "#"}, indent + 2))
            # Comments of the first key stand above the dash, where they read as the item's.
            leading = next(number for number, line in enumerate(lines) if not line.lstrip().startswith("#"))
            yield from (line[2:] for line in lines[:leading])
            yield f"{pad}- {lines[leading][indent + 2 :]}"
            yield from lines[leading + 1 :]
        elif isinstance(item, list) and item:
            lines = list(_sequence(item, indent + 2))
            yield f"{pad}- {lines[0][indent + 2 :]}"
            yield from lines[1:]
        else:
            first, *rest = _leaf(item, indent + 2)
            yield f"{pad}- {first}"
            yield from rest


def _leaf(value: Any, indent: int) -> list[str]:
    """A scalar or an empty collection; text of several lines as a block, so that scripts stay readable."""
    if isinstance(value, dict | list):
        return ["{}" if isinstance(value, dict) else "[]"]
    if isinstance(value, str) and _fits_a_block(value):
        pad = " " * indent
        mark = "|" if value.endswith("\n") else "|-"
        body = value.removesuffix("\n").split("\n")
        return [mark, *(pad + line if line else "" for line in body)]
    return [_scalar(value)]


def _fits_a_block(text: str) -> bool:
    """A block keeps these characters as they are; it cannot begin with a blank or end with several newlines."""
    if "\n" not in text.rstrip("\n") or text.endswith("\n\n") or text[0] in " \n\t":
        return False
    return all(char == "\n" or char == "\t" or (char.isprintable() and char != "\ufeff") for char in text)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and ("\n" in value or not value.isprintable()):
        dumped = yaml.safe_dump(value, default_style='"', width=float("inf"), allow_unicode=True)
    else:
        style = "'" if isinstance(value, str) and _AMBIGUOUS.match(value) else None
        dumped = yaml.safe_dump(value, width=float("inf"), allow_unicode=True, default_style=style)
    return dumped.removesuffix("\n").removesuffix("\n...")


def _comment(text: str, indent: int) -> Iterator[str]:
    pad = " " * indent
    for paragraph in text.splitlines():
        for line in textwrap.wrap(paragraph, max(40, _WIDTH - indent), break_long_words=False):
            yield f"{pad}# {line}"
