"""`logs`: the ranks' output, across restarts."""

from __future__ import annotations

import argparse
import re
import sys
import time
from typing import Literal

from orchestra.cli import exit_codes

EPILOG = """\
examples:
  {program} logs -f
  {program} logs my-job --rank 0,8-15 --grep nccl --since 5m
  {program} logs my-job --role master
"""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LEVELS = {"warn": r"(?i)\b(warn(ing)?|error|fatal|critical|exception|traceback)\b",
           "error": r"(?i)\b(error|fatal|critical|exception|traceback)\b"}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    add_job_argument(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    parser.add_argument("--rank", type=ranks, metavar="RANKS", help="only these, such as 0,8-15")
    parser.add_argument(
        "--role",
        choices=("launcher", "master", "worker"),
        help="only the first node, which launches or hosts the rendezvous, or only the others",
    )
    parser.add_argument("--since", type=duration, metavar="AGE", help="only the last 30s, 5m, 2h, 1d")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    parser.add_argument("--grep", type=expression, metavar="REGEX", help="only lines that match")
    parser.add_argument("--level", choices=sorted(_LEVELS), help="only lines that look at least so bad")
    parser.add_argument("--timestamps", action="store_true", help="begin lines with their time")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def ranks(text: str) -> list[int]:
    """`0,8-15` -> [0, 8, ..., 15]."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise argparse.ArgumentTypeError(f"{part!r} is no rank; write 0 or 0,8-15")
        found += range(int(first), int(last or first) + 1)
    return found


def duration(text: str) -> float:
    """`5m` -> 300.0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 30s, 5m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2] or "s"]


def expression(text: str) -> str:
    """A regular expression, checked."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error
    return text


def run(args: argparse.Namespace) -> int:
    """Prints the lines."""
    from orchestra.api.engine import LogQuery
    from orchestra.cli.engines import choose
    from orchestra.cli.terminal import Paint, clock, colours_wanted

    engine, name = choose(args)
    paint = Paint(colours_wanted(args.color))
    since = time.time() - args.since if args.since is not None else None
    role: Literal["master", "worker"] | None = "master" if args.role == "launcher" else args.role
    query = LogQuery(args.follow, args.rank, since, args.tail, args.grep, role)
    level = re.compile(_LEVELS[args.level]) if args.level else None
    shown = False
    for line in engine.logs(name, query):
        shown = True
        if level is None or level.search(line.text):
            stamp = f"{clock(line.time)} " if args.timestamps else ""
            print(f"{stamp}{paint.source(line.source)} {line.text}", flush=args.follow)
    if not shown:
        print(f"{name} has no such lines now; {args.program} status {name} tells where it stands", file=sys.stderr)
    return exit_codes.OK
