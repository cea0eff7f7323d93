"""`suspend`: save, stop, free the slots."""

from __future__ import annotations

import argparse
import sys

from orchestra.cli import exit_codes

EPILOG = """\
A script that does not use orchestra.train is stopped without a checkpoint, and that is said before.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    add_job_argument(parser)
    parser.add_argument("--no-wait", action="store_true", help="ask, and do not wait until it has stopped")


def run(args: argparse.Namespace) -> int:
    """Asks, waits, and tells the saved step."""
    from orchestra.cli.engines import choose, next_line
    from orchestra.cli.resting import wait_for_rest
    from orchestra.plan.status import phase_condition

    engine, name = choose(args)
    before = engine.suspend(name)
    progress = before.status.progress if before.status else None
    if progress is None or progress.step is None:
        print(
            f"{name} has reported no step: if its script does not use orchestra.train, nothing is saved",
            file=sys.stderr,
        )
    if args.no_wait:
        print(f"{name} was asked to stop")
        return exit_codes.OK
    job = wait_for_rest(engine, name)
    said = phase_condition(job)
    phase = job.status.phase if job.status else None
    gpus = job.status.gpus if job.status and phase == "Suspended" else None
    print(f"{name} is {phase}: {said.message if said else ''}" + (f"; {gpus} GPUs are free again" if gpus else ""))
    print(next_line(args, f"{'resume' if phase == 'Suspended' else 'status'} {name}"))
    return exit_codes.OK if phase == "Suspended" else exit_codes.ERROR
