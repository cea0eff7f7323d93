"""Words of a launch line in which some parts are known only inside the pod.

One manifest describes every node, so `--node-rank=0` of the plan becomes `--node-rank=` and a variable. A word is
written for Kubernetes (`$(NODE_RANK)`, as in a container's args and env) or for a shell (`"$NODE_RANK"`); what the
user wrote is never expanded by either.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True)
class Variable:
    """A variable of the pod's environment."""

    name: str


Word = tuple[str | Variable, ...]
"""Pieces that are joined: literal text and variables."""

NODE_RANK, NNODES, IS_HOST = Variable("NODE_RANK"), Variable("NNODES"), Variable("IS_HOST")


def kubernetes(word: Word) -> str:
    """As in `args` and `env`: `$(NAME)` is expanded there, and `$$` is one dollar."""
    return "".join(f"$({part.name})" if isinstance(part, Variable) else escaped(part) for part in word)


def escaped(text: str) -> str:
    """Literal text that Kubernetes does not expand."""
    return re.sub(r"\$(?=[($])", "$$", text)


def unescaped(text: str) -> str:
    """The reverse, for text without variables."""
    return _REFERENCE.sub(lambda found: "$" if found[0] == "$$" else found[0], text)


def shell(word: Word) -> str:
    """As one word of a shell script."""
    if not any(isinstance(part, Variable) for part in word):
        return shlex.quote("".join(str(part) for part in word))
    return '"' + "".join(f"${{{part.name}}}" if isinstance(part, Variable) else _in_quotes(part) for part in word) + '"'


def _in_quotes(text: str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", text)
