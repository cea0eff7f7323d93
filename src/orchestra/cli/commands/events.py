"""`events`: what happened to a job."""

from __future__ import annotations

import argparse

from orchestra.cli import exit_codes

EPILOG = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    add_job_argument(parser)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def run(args: argparse.Namespace) -> int:
    """Prints the events, oldest first."""
    from orchestra.cli.engines import choose
    from orchestra.cli.job_view import event_line
    from orchestra.cli.structured import print_structured
    from orchestra.cli.terminal import Paint, colours_wanted

    engine, name = choose(args)
    events = engine.events(name)
    if args.output != "table":
        print_structured(events, args.output)
    else:
        paint = Paint(colours_wanted(args.color))
        print("\n".join(event_line(event, paint) for event in events))
    return exit_codes.OK
