"""Command lines: what the launcher is given, and where a program's own words begin."""

from __future__ import annotations

import re
import sys
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a shim starts faster without it
    from .spec import LaunchSpec

_PYTHON = re.compile(r"^python(\d+(\.\d+)*)?$")
_SWITCH_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def shim_argv(agent_file: str) -> list[str]:
    """The shim, isolated from the user's PYTHONPATH: a `queue.py` among the training code must not reach it."""
    return [sys.executable, "-I", "-S", agent_file, "rank", "--"]


def launch_argv(spec: LaunchSpec, agent_file: str) -> list[str]:
    """The launcher, the shim, the program."""
    ranks = shim_argv(agent_file) + spec.program
    if spec.launcher == "torchrun":
        return [*spec.launcher_argv, "--no-python", *ranks]
    if spec.launcher == "deepspeed":
        # It puts --local_rank behind the first word, which is the shim's interpreter here: the shim does it instead.
        quiet = [] if "--no_local_rank" in spec.launcher_argv else ["--no_local_rank"]
        return [*spec.launcher_argv, "--no_python", *quiet, *ranks]
    return ranks


def with_local_rank(program: list[str], local_rank: int) -> list[str]:
    """The program as deepspeed calls it: `--local_rank` first among the script's own arguments."""
    end = script_end(program)
    return [*program[:end], f"--local_rank={local_rank}", *program[end:]]


def python_words(program: list[str]) -> tuple[list[str], list[str]] | None:
    """A Python program taken apart: the interpreter with its switches, and `script args` or `-m module args`.

    None where it is something else: another program, `-c`, a script from standard input.
    """
    if not _PYTHON.match(PurePosixPath(program[0]).name):
        return None
    position = 1
    while position < len(program) and program[position].startswith("-") and program[position] != "-m":
        if program[position] in ("-c", "-"):
            return None
        position += 2 if program[position] in _SWITCH_WITH_VALUE else 1
    rest = program[position:]
    return (program[:position], rest) if len(rest) > (rest[:1] == ["-m"]) else None


def script_end(program: list[str]) -> int:
    """Index of the first word that is the script's own."""
    if not _PYTHON.match(PurePosixPath(program[0]).name):
        return 1
    position = 1
    while position < len(program) and program[position].startswith("-"):
        if program[position] in ("-m", "-c"):
            return min(position + 2, len(program))
        position += 2 if program[position] in _SWITCH_WITH_VALUE else 1
    return min(position + 1, len(program))
