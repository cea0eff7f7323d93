"""`list`: one row a job."""

from __future__ import annotations

import argparse
import sys
import time

from orchestra.cli import exit_codes

EPILOG = """\
examples:
  {program} list
  {program} list -o wide -w
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_engine_arguments

    parser.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml", "name"), default="table")
    parser.add_argument("-w", "--watch", action="store_true", help="show it again whenever something changes")
    parser.add_argument("--no-headers", action="store_true", help="rows only")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    add_engine_arguments(parser, lists=True)


def run(args: argparse.Namespace) -> int:
    """Prints the list, once or for ever."""
    from orchestra.cli.engines import choose_engine, listed
    from orchestra.cli.job_view import list_jobs
    from orchestra.cli.structured import print_objects
    from orchestra.cli.terminal import Paint, colours_wanted

    engine = choose_engine(args)
    paint = Paint(colours_wanted(args.color))
    shown = None
    while True:
        jobs = listed(args, engine)
        if args.output in ("json", "yaml", "name"):
            print_objects(jobs, args.output)
        elif not jobs:
            if shown is None:
                print(f'no jobs on {engine.where}; try: {args.program} submit "python train.py"', file=sys.stderr)
                shown = ""
        else:
            text = list_jobs(
                jobs, paint, wide=args.output == "wide", headers=not args.no_headers, namespaces=args.all_namespaces
            )
            if text != shown:
                print(text, flush=True)
                shown = text
        if not args.watch:
            return exit_codes.OK
        engine.look()
        time.sleep(max(1.0, engine.tick))
