"""Options from a file: `config/conf.yaml`, of which we read the part that people write.

    learning_rate: 6e-4          # both spellings: learning-rate, learning_rate
    model:                       # headings only group; what matters are the options below them
      n_layer: 12
    fp8: false

No lists, no nested values, no anchors: each would be an option that this trainer does not have, and is refused by file
and line. So a worker's image needs no YAML package.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path
from typing import Any

from orchestra.train.world import Refused

_LINE = re.compile(r"""(\s*)(['"]?)([A-Za-z][\w-]*)\2\s*:(?:\s+(.*))?""")
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


def words(path: Path, options: type[Any]) -> list[str]:
    """The file as words of a command line, to be put before the real ones. Raises `Refused` with file and line."""
    types = typing.get_type_hints(options)
    names = {field.name for field in dataclasses.fields(options)}
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"the config file {path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        bare = _without_comment(line).rstrip()
        if not bare or bare == "---":
            continue
        match = _LINE.fullmatch(bare)
        if match is None:
            raise Refused(f"{path}:{number}: not `option: value`: {bare.strip()}")
        name, value = match[3].replace("-", "_"), (match[4] or "").strip()
        if not value and name not in names:
            continue  # a heading
        if name not in names:
            raise Refused(f"{path}:{number}: there is no option {match[3]}; --help lists them all")
        found.append(_word(name, _unquoted(value), types[name], f"{path}:{number}"))
    return found


def _word(name: str, value: str, kind: Any, place: str) -> str:
    flag = name.replace("_", "-")
    if kind is not bool:
        try:
            kind(value)
        except ValueError:
            raise Refused(f"{place}: {name}: {value!r} is no {kind.__name__}") from None
        return f"--{flag}={value}"
    if value.lower() not in _TRUE + _FALSE:
        raise Refused(f"{place}: {name} is true or false, not {value!r}")
    return f"--{flag}" if value.lower() in _TRUE else f"--no-{flag}"


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", line) if "'" not in line and '"' not in line else line


def _unquoted(value: str) -> str:
    quoted = re.fullmatch(r"""(['"])(.*?)\1\s*(#.*)?""", value)
    return quoted[2] if quoted else value
