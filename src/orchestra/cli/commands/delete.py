"""`delete`: stop and forget a job."""

from __future__ import annotations

import argparse
from pathlib import Path

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
    from orchestra.cli.engines import choose

    for job in args.jobs:
        engine, name = choose(args, job)
        output = engine.places(name).get("output")
        engine.delete(name, purge=args.purge)
        stays = output and not args.purge and (engine.name != "local" or Path(output).exists())
        print(f"{name} deleted" + (f"; its output stays: {output}" if stays else ""))
    return exit_codes.OK
