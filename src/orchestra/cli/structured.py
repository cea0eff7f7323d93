"""Machine-readable output: JSON and YAML of whatever a verb shows."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from orchestra.api.base import to_builtins


def print_structured(value: Any, form: str) -> None:
    """Prints a struct, or a list of them, as `json` or `yaml`."""
    plain = to_builtins(value)
    if form == "json":
        print(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode())
    else:
        print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120), end="")
