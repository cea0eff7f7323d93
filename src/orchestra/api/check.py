"""Checks a YAML tree against the API's shape and names everything that is wrong, not only the first."""

from __future__ import annotations

import re
from typing import Any

from orchestra.api.problem import Problem
from orchestra.api.quantity import Quantity
from orchestra.api.shape import (
    Amount,
    AnyObject,
    Listing,
    Mapping,
    Object,
    Scalar,
    Shape,
    Words,
)
from orchestra.api.source import Node
from orchestra.api.spelling import did_you_mean

_TYPE_WORDS = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
_PATTERN_WORDS = {
    r"^/": "must be an absolute path, beginning with /",
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$": "must be lower-case letters, digits, - and ., beginning and ending "
    "with a letter or digit",
    r"^[-._a-zA-Z][-._a-zA-Z0-9]*$": "must be letters, digits, _, - and ., not beginning with a digit",
    r"^[0-9]+(\.[0-9]+){0,2}$": 'must be a version such as "3.11"',
}


def check(node: Node, shape: Shape, path: str = "") -> list[Problem]:
    """Every mismatch between a tree and a shape, each with its place."""
    if node.value is None:
        return [_wrong(node, path, "is empty", "give it a value or remove the line")]
    match shape:
        case Object():
            return _check_object(node, shape, path)
        case Listing():
            return _check_list(node, shape, path)
        case Mapping():
            return _check_map(node, shape, path)
        case Scalar():
            return _check_scalar(node, shape, path)
        case Amount():
            return _check_amount(node, path)
        case Words():
            return _check_words(node, path)
        case AnyObject():
            return [] if isinstance(node.value, dict) else [_wrong_type(node, path, "a map of fields")]


def _check_object(node: Node, shape: Object, path: str) -> list[Problem]:
    if not isinstance(node.value, dict):
        return [_wrong_type(node, path, "a map of fields")]
    problems = []
    for key, child in node.value.items():
        below = f"{path}.{key}" if path else key
        if key in shape.fields:
            problems += check(child, shape.fields[key].shape, below)
        else:
            unused = [name for name in shape.fields if name not in node.value]
            problems.append(Problem(below, "unknown field", did_you_mean(key, unused), node.keys[key]))
    problems += [
        Problem(f"{path}.{name}" if path else name, "is missing", "add it", node.place)
        for name, field in shape.fields.items()
        if field.required and name not in node.value
    ]
    return problems


def _check_list(node: Node, shape: Listing, path: str) -> list[Problem]:
    if not isinstance(node.value, list):
        return [_wrong_type(node, path, "a list")]
    problems = []
    if len(node.value) > shape.max_items:
        problems.append(_wrong(node, path, f"has {len(node.value)} items", f"at most {shape.max_items}"))
    for index, child in enumerate(node.value):
        problems += check(child, shape.item, f"{path}[{index}]")
    return problems


def _check_map(node: Node, shape: Mapping, path: str) -> list[Problem]:
    if not isinstance(node.value, dict):
        return [_wrong_type(node, path, "a map")]
    problems = []
    if len(node.value) > shape.max_properties:
        problems.append(_wrong(node, path, f"has {len(node.value)} entries", f"at most {shape.max_properties}"))
    for key, child in node.value.items():
        problems += check(child, shape.value, f"{path}.{key}")
    return problems


def _check_words(node: Node, path: str) -> list[Problem]:
    if isinstance(node.value, list):
        if not node.value:
            return [_wrong(node, path, "is an empty list", "write what to run")]
        return [problem for index, child in enumerate(node.value) for problem in _check_word(child, f"{path}[{index}]")]
    problems = _check_word(node, path)
    if not problems and not node.value.strip():
        return [_wrong(node, path, "is empty", "write what to run")]
    return problems


def _check_word(node: Node, path: str) -> list[Problem]:
    return check(node, Scalar(str, max_length=32768), path)


def _check_amount(node: Node, path: str) -> list[Problem]:
    value = node.value
    if isinstance(value, float):
        return [_wrong(node, path, f"{value} is a fraction", f'write it in quotes, "{value}"')]
    if isinstance(value, str | int) and not isinstance(value, bool):
        try:
            Quantity(value)
        except ValueError:
            return [_wrong(node, path, f"{value!r} is not a quantity", "write a number such as 4, 500m or 512Gi")]
        return []
    return [_wrong_type(node, path, "a quantity such as 4, 500m or 512Gi")]


def _check_scalar(node: Node, shape: Scalar, path: str) -> list[Problem]:
    value = node.value
    if not _has_type(value, shape.type):
        return [_wrong_type(node, path, _TYPE_WORDS[shape.type])]
    if shape.choices and value not in shape.choices:
        return [_wrong(node, path, f"{value!r} is not known", did_you_mean(value, shape.choices))]
    if shape.minimum is not None and value < shape.minimum:
        return [_wrong(node, path, f"{value} is too small", f"at least {shape.minimum}")]
    if shape.maximum is not None and value > shape.maximum:
        return [_wrong(node, path, f"{value} is too large", f"at most {shape.maximum}")]
    if isinstance(value, str):
        return _check_string(node, shape, path)
    return []


def _check_string(node: Node, shape: Scalar, path: str) -> list[Problem]:
    value: str = node.value
    if shape.min_length is not None and len(value) < shape.min_length:
        return [_wrong(node, path, "is empty", "give it a value or remove the line")]
    if shape.max_length is not None and len(value) > shape.max_length:
        return [_wrong(node, path, f"has {len(value)} characters", f"at most {shape.max_length}")]
    if shape.pattern is not None and not re.search(shape.pattern, value):
        words = _PATTERN_WORDS.get(shape.pattern, f"must match {shape.pattern}")
        return [_wrong(node, path, f"{value!r} is not allowed", words)]
    return []


def _has_type(value: Any, wanted: type) -> bool:
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)


def _wrong_type(node: Node, path: str, wanted: str) -> Problem:
    value = node.value
    mend = ""
    if isinstance(value, dict):
        got = "a map"
    elif isinstance(value, list):
        got = "a list"
    else:
        got = {True: "true", False: "false"}.get(value, repr(value)) if isinstance(value, bool) else repr(value)
        if wanted == "a string":
            mend = f'write it in quotes, "{got}"'
    return _wrong(node, path, f"must be {wanted}, not {got}", mend)


def _wrong(node: Node, path: str, reason: str, mend: str = "") -> Problem:
    return Problem(path, reason, mend, node.place)
