"""Reading Python's tracebacks and faulthandler's stacks out of log lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HEADER = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?::\s?(.*))?$")
# Errors in the source itself are shown without the header above.
_SOURCE_ERROR = re.compile(r"^(SyntaxError|IndentationError|TabError): (.*)$")
_GROUP_MARGIN = re.compile(r"^\s*[+|][\s|+-]*")
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')


@dataclass(frozen=True)
class Raised:
    """The exception that ended a program."""

    type: str
    """As Python prints it, with its module."""
    message: str
    lines: list[str]
    """The traceback."""

    @property
    def name(self) -> str:
        """The type without its module."""
        return self.type.rpartition(".")[2]


def last_traceback(lines: Sequence[str]) -> Raised | None:
    """The last exception shown in full among these lines."""
    found = None
    begin = None
    for number, line in enumerate(lines):
        text = _GROUP_MARGIN.sub("", line) if begin is None or line.startswith("  |") else line
        if text.startswith("[rank") and ": " in text:  # torch puts `[rank0]: ` before a rank's own traceback
            text = text.partition(": ")[2]
        if text.endswith(_HEADER):
            begin = number
            continue
        source = _SOURCE_ERROR.match(text)
        if source and begin is None:
            first = max(0, number - 4)
            found = Raised(source.group(1), source.group(2), list(lines[first : number + 1]))
            continue
        if begin is None or not text or text[0].isspace():
            continue
        match = _EXCEPTION.match(text)
        if match:
            found = Raised(match.group(1), match.group(2) or "", list(lines[begin : number + 1]))
        begin = None
    return found


@dataclass(frozen=True)
class Frame:
    """One call of a dumped stack."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        """Short, for a message."""
        return f"{self.function} ({self.file.rpartition('/')[2]}:{self.line})"


def main_stack(lines: Sequence[str]) -> list[Frame]:
    """The main thread's stack from faulthandler's output, innermost call first. It is the last one shown."""
    frames: list[Frame] = []
    for line in lines:
        if _THREAD.match(line):
            frames = []
        match = _FRAME.match(line)
        if match:
            frames.append(Frame(match.group("file"), match.group("line"), match.group("name")))
    return frames


def in_collective(stack: Sequence[Frame]) -> bool:
    """Whether the stack waits inside torch's collectives."""
    return any("/torch/distributed/" in frame.file or "/torch/nn/parallel/" in frame.file for frame in stack)
