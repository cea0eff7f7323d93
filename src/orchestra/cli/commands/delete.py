"""`delete`: stop and forget a job."""

from __future__ import annotations

import argparse

from orchestra.cli import exit_codes

EPILOG = """\
Checkpoints and other outputs stay where they are, unless --purge is given.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_engine_arguments

    parser.add_argument("jobs", nargs="+", metavar="JOB", help="names of the jobs")
    parser.add_argument("--purge", action="store_true", help="remove outputs and checkpoints too")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Deletes each."""
    from orchestra.cli.engines import choose_engine

    engine = choose_engine(args)
    for name in args.jobs:
        output = engine.output(name)
        engine.delete(name, purge=args.purge)
        print(f"{name} deleted" + (f"; its output stays in {output}" if output.exists() else ""))
    return exit_codes.OK
