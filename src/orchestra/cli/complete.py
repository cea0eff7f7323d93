"""Candidates for completion, from the same parser that reads the command line."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Sequence

from orchestra.cli.main import build_parser
from orchestra.cli.verbs import VERBS

_FILES = ":files"


def candidates(words: Sequence[str]) -> list[str]:
    """What could stand for the last word. `:files` means: any file name."""
    if not words:
        return sorted(VERBS)
    *before, current = words
    verb = next((word for word in before if word in VERBS), None)
    if verb is None:
        return [name for name in (*sorted(VERBS), "--help", "--version") if name.startswith(current)]
    parser = _parser_of(verb)
    options = [action for action in parser._actions if action.option_strings]
    waiting = next((a for a in options if before[-1] in a.option_strings and a.nargs != 0), None)
    if waiting is not None:
        return _names(parser, verb, before, "queues", current) if waiting.dest == "queue" else _values(waiting, current)
    if current.startswith("-"):
        return sorted(s for action in options for s in action.option_strings if s.startswith(current))
    positional = next((action for action in parser._actions if not action.option_strings), None)
    if positional is None:
        return []
    if positional.dest in ("job", "jobs", "queue"):
        return _names(parser, verb, before, "queues" if positional.dest == "queue" else "jobs", current)
    return _values(positional, current)


def _names(parser: argparse.ArgumentParser, verb: str, before: list[str], what: str, current: str) -> list[str]:
    """Names of jobs or queues where the words so far say; none, and no noise, where nobody answers."""
    words = before[before.index(verb) + 1 :]
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            args, _ = parser.parse_known_args([word for word in words if word not in ("-o", "--queue")])
    except SystemExit:
        return []
    args.verb, args.program = verb, "orchestra"
    from orchestra.api.engine import EngineError
    from orchestra.cli.engines import choose_engine

    try:
        engine = choose_engine(args)
        found = engine.queues() if what == "queues" else engine.jobs()
    except EngineError:
        return []
    return sorted({one.metadata.name for one in found if one.metadata.name.startswith(current)})


def _values(action: argparse.Action, current: str) -> list[str]:
    if action.choices is not None:
        return [choice for choice in action.choices if choice.startswith(current)]
    return [_FILES]


def _parser_of(verb: str) -> argparse.ArgumentParser:
    parser = build_parser("orchestra", verb)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen: argparse.ArgumentParser = action.choices[verb]
            return chosen
    raise LookupError(verb)


def shell() -> None:
    """`orchestra-complete`: one candidate a line, for our own scripts."""
    print(*candidates(sys.argv[1:]), sep="\n")


def kubectl_plugin() -> None:
    """`kubectl_complete-torchrun`: kubectl's protocol, one candidate a line and then what it may add itself."""
    found = candidates(sys.argv[1:])
    may_be_file = _FILES in found
    for candidate in found:
        if candidate != _FILES:
            print(candidate)
    print(":0" if may_be_file else ":4")
