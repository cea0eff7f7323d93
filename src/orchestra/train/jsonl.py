"""JSONL data: one record a line, each a text or a chat. No torch here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra.train.world import Refused

_QUESTIONS = ("prompt", "instruction", "question")
_ANSWERS = ("completion", "output", "response", "answer")


@dataclass(frozen=True)
class Message:
    """One turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True)
class Record:
    """One line: either a text, or a chat."""

    place: str
    """File and line, for messages."""
    text: str | None
    messages: tuple[Message, ...]


def read(path: str | Path) -> Iterator[Record]:
    """All records of a file. Raises `Refused` with file and line for one that is none; empty lines do not count.

    A text is `{"text": "..."}`; a chat `{"messages": [{"role": ..., "content": ...}, ...]}` or a question and its
    answer: `prompt`/`instruction`/`question` and `completion`/`output`/`response`/`answer`.
    """
    try:
        with Path(path).open(encoding="utf-8", errors="strict") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _record(f"{path}:{number}", line)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not UTF-8: {error}") from error


def _record(place: str, line: str) -> Record:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise Refused(f"{place}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise Refused(f"{place}: a {type(content).__name__} instead of an object")
    if isinstance(content.get("text"), str):
        return Record(place, content["text"], ())
    turns = content.get("messages") or content.get("conversations")
    if isinstance(turns, list) and turns:
        return Record(place, None, tuple(_message(place, turn) for turn in turns))
    question = next((content[name] for name in _QUESTIONS if isinstance(content.get(name), str)), None)
    answer = next((content[name] for name in _ANSWERS if isinstance(content.get(name), str)), None)
    if question is None or answer is None:
        found = ", ".join(map(str, content)) or "nothing"
        raise Refused(f"{place}: no text, no messages, no prompt with completion; it has {found}")
    return Record(place, None, (Message("user", question), Message("assistant", answer)))


def _message(place: str, turn: Any) -> Message:
    role = turn.get("role") or turn.get("from") if isinstance(turn, dict) else None
    content = turn.get("content") or turn.get("value") if isinstance(turn, dict) else None
    if not isinstance(role, str) or not isinstance(content, str):
        raise Refused(f"{place}: each message is an object with role and content, not {turn!r:.80}")
    return Message(role, content)
