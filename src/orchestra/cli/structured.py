"""Machine-readable output: JSON and YAML of whatever a verb shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import yaml

from orchestra.api import TorchrunJob, TorchrunQueue
from orchestra.api.base import to_builtins


def print_structured(value: Any, form: str) -> None:
    """Prints a struct, or a list of them, as `json` or `yaml`."""
    plain = to_builtins(value)
    if form == "json":
        print(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode())
    else:
        print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120), end="")


def print_objects(what: TorchrunJob | TorchrunQueue | Sequence[TorchrunJob | TorchrunQueue], form: str) -> None:
    """Objects as Kubernetes shows them: one alone, several as a List; `name` is one `kind/name` a line."""
    if form == "name":
        for one in [what] if isinstance(what, TorchrunJob | TorchrunQueue) else what:
            print(f"{one.kind.lower()}/{one.metadata.name}")
    elif isinstance(what, TorchrunJob | TorchrunQueue):
        print_structured(manifest(what), form)
    else:
        print_structured({"apiVersion": "v1", "kind": "List", "items": [manifest(one) for one in what]}, form)


def manifest(one: TorchrunJob | TorchrunQueue) -> dict[str, Any]:
    """An object with its apiVersion and kind first."""
    return {"apiVersion": one.api_version, "kind": one.kind, **to_builtins(one)}
