"""Splits a command line into words as a shell would, without being one.

Quotes, backslashes and line continuations mean what they mean in sh. Nothing is expanded: a `$`, a `*` or a `~` is
an ordinary character. What only a shell could do (`&&`, pipes, redirection) is refused, because running it word by
word would do something else than its author meant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_OPERATORS = "&|;<>()`"
_ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")


class NeedsShell(ValueError):
    """The line uses something that only a shell can do."""

    def __init__(self, operator: str) -> None:
        super().__init__(f"`{operator}` needs a shell")
        self.operator = operator


class OpenQuote(ValueError):
    """A quote is not closed."""

    def __init__(self, quote: str) -> None:
        super().__init__(f"the quote {quote} is not closed")
        self.quote = quote


@dataclass
class Line:
    """A parsed command line."""

    words: list[str] = field(default_factory=list)
    assignments: dict[str, str] = field(default_factory=dict)
    """`NAME=value` in front of the command."""
    unexpanded: list[str] = field(default_factory=list)
    """Words with a `$` that a shell would have expanded and we do not."""


def parse(text: str) -> Line:
    """The words of a line. Raises `NeedsShell` or `OpenQuote`."""
    line = Line()
    for word, bare, expands in _split(text):
        if not line.words and bare and _ASSIGNMENT.match(word):
            name, value = word.split("=", 1)
            line.assignments[name] = value
            continue
        line.words.append(word)
        if expands:
            line.unexpanded.append(word)
    return line


def _split(text: str) -> list[tuple[str, bool, bool]]:
    """Each word with: does it begin unquoted, does it hold an unquoted or double-quoted `$`."""
    words: list[tuple[str, bool, bool]] = []
    current: list[str] | None = None
    bare = expands = False
    position = 0
    while position < len(text):
        char = text[position]
        if char in " \t\n\r":
            if current is not None:
                words.append(("".join(current), bare, expands))
                current, expands = None, False
            position += 1
            continue
        if char == "\\" and text[position + 1 : position + 2] == "\n":
            position += 2  # a line continuation joins two lines
            continue
        if char in _OPERATORS:
            raise NeedsShell(_operator_at(text, position))
        if current is None:
            current, bare = [], char not in "'\"\\"
        piece, position, expanding = _piece(text, position)
        current.append(piece)
        expands = expands or expanding
    if current is not None:
        words.append(("".join(current), bare, expands))
    return words


def _piece(text: str, position: int) -> tuple[str, int, bool]:
    """One quoted run, escaped character or plain character, and where it ends."""
    char = text[position]
    if char == "'":
        end = text.find("'", position + 1)
        if end < 0:
            raise OpenQuote("'")
        return text[position + 1 : end], end + 1, False
    if char == '"':
        return _double_quoted(text, position + 1)
    if char == "\\" and position + 1 < len(text):
        return text[position + 1], position + 2, False
    return char, position + 1, _begins_variable(text, position)


def _double_quoted(text: str, position: int) -> tuple[str, int, bool]:
    piece: list[str] = []
    expands = False
    while position < len(text):
        char = text[position]
        if char == '"':
            return "".join(piece), position + 1, expands
        if char == "\\" and position + 1 < len(text) and text[position + 1] in '$`"\\\n':
            if text[position + 1] != "\n":
                piece.append(text[position + 1])
            position += 2
            continue
        if char == "`" or text.startswith("$(", position):
            raise NeedsShell("`" if char == "`" else "$(")
        expands = expands or _begins_variable(text, position)
        piece.append(char)
        position += 1
    raise OpenQuote('"')


def _begins_variable(text: str, position: int) -> bool:
    return bool(re.match(r"\$[A-Za-z_{]", text[position : position + 2]))


def _operator_at(text: str, position: int) -> str:
    pair = text[position : position + 2]
    return pair if pair in ("&&", "||", ">>", "<<", ">&", "$(") else text[position]
