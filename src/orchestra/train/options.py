"""Command line options from a typed dataclass, in both spellings: `--output-dir` and `--output_dir`."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def option(default: Any, help: str, *, least: float | None = None) -> Any:
    """A field of an options class: its default, its line of help, and the least value allowed."""
    return dataclasses.field(default=default, metadata={"help": help, "least": least})


def parse(options: type[T], arguments: Sequence[str], *, program: str) -> T:
    """Read a command line into an instance of `options`. Prints and exits as argparse does."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=options.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    types = typing.get_type_hints(options)
    for field in dataclasses.fields(options):  # type: ignore[arg-type]
        shape: dict[str, Any] = {"type": _reader(types[field.name], field.metadata["least"])}
        if types[field.name] is bool:
            shape = {"action": argparse.BooleanOptionalAction}
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, default=field.default, help=field.metadata["help"], **shape)
    return options(**vars(parser.parse_args([_with_dashes(word) for word in arguments])))


def _with_dashes(word: str) -> str:
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value


def _reader(kind: Callable[[str], Any], least: float | None) -> Callable[[str], Any]:
    def read(word: str) -> Any:
        value = kind(word)
        if least is not None and value < least:
            raise argparse.ArgumentTypeError(f"{word} is less than {least:g}")
        return value

    read.__name__ = getattr(kind, "__name__", "value")  # argparse names it in "invalid int value"
    return read
