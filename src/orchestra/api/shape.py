"""The shape of the API structs as plain data, for everyone who walks them: the file checker, the CRD writer, the docs.

Bounds that a field does not state itself get a general one here, so that the API server (whose cost estimate for
rules needs a bound on everything) and the local check agree.
"""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, Union

import msgspec
from msgspec import Meta

from orchestra.api.quantity import Quantity

MAX_LIST = 256
MAX_MAP = 256
MAX_STRING = 1024


@dataclass(frozen=True)
class Scalar:
    """A string, number or boolean, with its bounds."""

    type: type
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None


@dataclass(frozen=True)
class Amount:
    """A Kubernetes quantity: a number or a string such as `512Gi`."""


@dataclass(frozen=True)
class Listing:
    """A list of one shape."""

    item: Shape
    max_items: int = MAX_LIST


@dataclass(frozen=True)
class Mapping:
    """A map from any string to one shape."""

    value: Shape
    max_properties: int = MAX_MAP


@dataclass(frozen=True)
class AnyObject:
    """Someone else's object, passed on as it is."""


@dataclass(frozen=True)
class Words:
    """A command: one string, or a list of strings."""


@dataclass(frozen=True)
class Field:
    """A field of an object."""

    name: str
    attribute: str
    shape: Shape
    required: bool
    default: Any = None


@dataclass(frozen=True)
class Object:
    """A struct of ours."""

    struct: type[msgspec.Struct]
    fields: dict[str, Field] = field(hash=False)


Shape = Scalar | Amount | Listing | Mapping | AnyObject | Words | Object


@cache
def shape_of(struct: type[msgspec.Struct]) -> Object:
    """The shape of a struct and of all that is in it."""
    hints = typing.get_type_hints(struct, include_extras=True)
    fields = {}
    for info in msgspec.structs.fields(struct):
        default = None if info.default is msgspec.NODEFAULT else info.default
        if info.default_factory is not msgspec.NODEFAULT:
            default = info.default_factory()
        fields[info.encode_name] = Field(
            name=info.encode_name,
            attribute=info.name,
            shape=_shape(hints[info.name], ()),
            required=info.required,
            default=default,
        )
    return Object(struct, fields)


def _shape(hint: Any, metas: tuple[Meta, ...]) -> Shape:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _shape(arguments[0], (*(m for m in arguments[1:] if isinstance(m, Meta)), *metas))
    if origin in (Union, types.UnionType):
        given = [argument for argument in arguments if argument is not type(None)]
        if len(given) == 1:
            return _shape(given[0], metas)
        return Words()  # the only union of the API: a string or a list of strings
    if origin is Literal:
        return Scalar(str, choices=tuple(arguments), max_length=max(map(len, arguments)))
    if origin is list:
        return Listing(_shape(arguments[0], ()), _bound(metas, "max_length") or MAX_LIST)
    if origin is dict:
        if arguments[1] is Any:
            return AnyObject()
        return Mapping(_shape(arguments[1], ()), _bound(metas, "max_length") or MAX_MAP)
    if hint is Quantity:
        return Amount()
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return shape_of(hint)
    if hint in (str, int, float, bool):
        return Scalar(
            hint,
            minimum=_bound(metas, "ge"),
            maximum=_bound(metas, "le"),
            min_length=_bound(metas, "min_length"),
            max_length=(_bound(metas, "max_length") or MAX_STRING) if hint is str else None,
            pattern=_bound(metas, "pattern"),
        )
    raise TypeError(f"no shape for {hint!r}: teach orchestra.api.shape about it")


def _bound(metas: tuple[Meta, ...], name: str) -> Any:
    return next((getattr(meta, name) for meta in metas if getattr(meta, name) is not None), None)
