"""`cancel`: stop a job for good."""

from __future__ import annotations

import argparse

from orchestra.cli import exit_codes

EPILOG = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    add_job_argument(parser)
    parser.add_argument("--no-wait", action="store_true", help="ask, and do not wait until it has stopped")


def run(args: argparse.Namespace) -> int:
    """Asks and waits."""
    from orchestra.cli.engines import choose, next_line
    from orchestra.cli.resting import wait_for_end
    from orchestra.plan.status import phase_condition

    engine, name = choose(args)
    engine.cancel(name)
    if args.no_wait:
        print(f"{name} was asked to stop")
        return exit_codes.OK
    said = phase_condition(wait_for_end(engine, name))
    print(f"{name} is cancelled" + (f" ({said.message})" if said else ""))
    print(next_line(args, f"delete {name}"))
    return exit_codes.OK
