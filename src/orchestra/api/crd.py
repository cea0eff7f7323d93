"""The CustomResourceDefinitions, generated from the structs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping as AbstractMapping
from functools import cache
from typing import Any

import msgspec

from orchestra.api.base import to_builtins
from orchestra.api.changes import change_rules
from orchestra.api.defaults import TEMPLATE_DEFAULTS
from orchestra.api.job import TorchrunJob, TorchrunJobSpec
from orchestra.api.quantity import PATTERN, Quantity
from orchestra.api.queue import TorchrunQueue
from orchestra.api.rules import JOB_RULES, QUEUE_RULES, Rule
from orchestra.api.shape import (
    Amount,
    AnyObject,
    Field,
    Listing,
    Mapping,
    Object,
    Scalar,
    Shape,
    Words,
    shape_of,
)

_NO_DEFAULTS: AbstractMapping[str, Any] = {}


def job_crd() -> dict[str, Any]:
    """The CRD of TorchrunJob."""
    schema = _root_schema(TorchrunJob, _NO_DEFAULTS)
    _add_rules(schema, JOB_RULES)
    schema["properties"]["spec"]["x-kubernetes-validations"] += [
        {"rule": rule.cel, "message": rule.message, "fieldPath": f".{rule.field}"}
        for rule in change_rules(fields_cel_sees())
    ]
    columns = [
        ("Queue", "string", ".spec.jobQueue"),
        ("GPUs", "integer", ".status.gpus"),
        ("Nodes", "integer", ".status.nodes"),
        ("Phase", "string", ".status.phase"),
        ("Progress", "string", ".status.progressText"),
        ("Restarts", "integer", ".status.restarts"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ]
    return _crd("TorchrunJob", "torchrunjobs", ["tj", "trj"], schema, columns)


def queue_crd() -> dict[str, Any]:
    """The CRD of TorchrunQueue."""
    schema = _root_schema(TorchrunQueue, {f"spec.{path}": value for path, value in TEMPLATE_DEFAULTS.items()})
    _add_rules(schema, QUEUE_RULES)
    columns = [
        ("Phase", "string", ".status.phase"),
        ("GPUs/Node", "integer", ".spec.nodeResources.gpus"),
        ("Running", "integer", ".status.jobs.running"),
        ("Pending", "integer", ".status.jobs.pending"),
        ("Used", "integer", ".status.gpus.used"),
        ("Quota", "integer", ".status.gpus.quota"),
        ("KAI-Queue", "string", ".status.kaiQueue"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ]
    return _crd("TorchrunQueue", "torchrunqueues", ["trq"], schema, columns)


def _crd(
    kind: str, plural: str, short_names: list[str], schema: dict[str, Any], columns: list[tuple[str, str, str]]
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.torchrun.ai"},
        "spec": {
            "group": "torchrun.ai",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": short_names,
                "categories": ["torchrun"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind_, "jsonPath": path} for name, kind_, path in columns
                    ],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _root_schema(struct: type[msgspec.Struct], defaults: AbstractMapping[str, Any]) -> dict[str, Any]:
    shape = shape_of(struct)
    return {
        "type": "object",
        "description": _class_words(struct),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _field_schema(struct, shape.fields["spec"], "spec", defaults),
            "status": _field_schema(struct, shape.fields["status"], "status", defaults),
        },
    }


def _add_rules(schema: dict[str, Any], rules: tuple[Rule[Any], ...]) -> None:
    for rule in rules:
        target = schema["properties"]["spec"] if rule.at == "spec" else schema
        validation = {"rule": rule.cel, "message": rule.message}
        if rule.at == "spec":
            validation["fieldPath"] = rule.path.removeprefix("spec")
        target.setdefault("x-kubernetes-validations", []).append(validation)


def fields_cel_sees() -> list[str]:
    """Fields of a job that CEL can compare: nothing in them is of a type that the schema leaves open.

    The rest (`command`, volumes, affinity, ...) is watched by the operator with `forbidden_changes`.
    """
    return [name for name, field in shape_of(TorchrunJobSpec).fields.items() if not _is_open(field.shape)]


def _is_open(shape: Shape) -> bool:
    match shape:
        case Words() | AnyObject():
            return True
        case Listing():
            return _is_open(shape.item)
        case Mapping():
            return _is_open(shape.value)
        case Object():
            return any(_is_open(field.shape) for field in shape.fields.values())
        case _:
            return False


def _field_schema(
    owner: type[msgspec.Struct], field: Field, path: str, defaults: AbstractMapping[str, Any]
) -> dict[str, Any]:
    schema = _schema(field.shape, path, defaults)
    words = _field_words(owner).get(field.attribute)
    if words:
        schema["description"] = words
    default = defaults.get(path, _plain_default(field))
    if default is not None:
        schema["default"] = default
    return schema


def _plain_default(field: Field) -> Any:
    """The default to publish: none for "not given", `{}` for a block whose own fields have defaults."""
    value = field.default
    if value is None or value == [] or value == {}:
        return None
    if isinstance(value, msgspec.Struct):
        return {}
    return to_builtins(value) if isinstance(value, Quantity) else value


def _schema(shape: Shape, path: str, defaults: AbstractMapping[str, Any]) -> dict[str, Any]:
    match shape:
        case Scalar():
            return _scalar_schema(shape)
        case Amount():
            return {
                "x-kubernetes-int-or-string": True,
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "pattern": PATTERN,
                "maxLength": 64,
            }
        case Words():
            return {"x-kubernetes-preserve-unknown-fields": True}
        case AnyObject():
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case Mapping():
            values = _schema(shape.value, path, _NO_DEFAULTS)
            return {"type": "object", "additionalProperties": values, "maxProperties": shape.max_properties}
        case Listing():
            listing = {"type": "array", "items": _schema(shape.item, path, _NO_DEFAULTS), "maxItems": shape.max_items}
            if path == "status.conditions":  # several writers each own their conditions
                listing |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
            return listing
        case Object():
            return _object_schema(shape, path, defaults)


def _object_schema(shape: Object, path: str, defaults: AbstractMapping[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "description": _class_words(shape.struct)}
    required = [name for name, field in shape.fields.items() if field.required]
    if required:
        schema["required"] = required
    schema["properties"] = {
        name: _field_schema(shape.struct, field, f"{path}.{name}", defaults) for name, field in shape.fields.items()
    }
    return schema


def _scalar_schema(shape: Scalar) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[shape.type]}
    if shape.type is int:
        schema["format"] = "int64"
    if shape.choices:
        return schema | {"enum": list(shape.choices)}
    bounds = {
        "minimum": shape.minimum,
        "maximum": shape.maximum,
        "minLength": shape.min_length,
        "maxLength": shape.max_length,
        "pattern": shape.pattern,
    }
    return schema | {name: bound for name, bound in bounds.items() if bound is not None}


def _class_words(struct: type) -> str:
    return _one_line(struct.__doc__ or "")


@cache
def _field_words(struct: type) -> dict[str, str]:
    """The docstrings below the fields, which Python itself does not keep."""
    words: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if not (issubclass(base, msgspec.Struct) and base.__module__.startswith("orchestra.api")):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(tree, ast.ClassDef)  # noqa: S101 -- narrows the type for the reader and for mypy
        for statement, following in zip(tree.body, tree.body[1:], strict=False):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    words[name] = _one_line(text)
    return words


def _one_line(text: str) -> str:
    return " ".join(text.split())
