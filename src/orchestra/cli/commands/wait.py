"""`wait`: until a job has come somewhere."""

from __future__ import annotations

import argparse
import time

from orchestra.cli import exit_codes
from orchestra.cli.commands.logs import duration

EPILOG = """\
Exit codes: 0 reached, 100 the job failed, 101 not in time, 103 suspended or cancelled.

examples:
  {program} wait my-job
  {program} wait my-job --for=Running --timeout 60s
"""

PHASES = ("Pending", "Queued", "Provisioning", "Running", "Suspended", "Succeeded", "Failed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    add_job_argument(parser)
    parser.add_argument("--for", dest="phase", choices=PHASES, default="Succeeded", help="the phase to wait for")
    parser.add_argument("--timeout", type=duration, metavar="TIME", help="give up after 30s, 5m, ... (default: never)")


def run(args: argparse.Namespace) -> int:
    """Waits; the exit code tells how it ended."""
    from orchestra.cli.engines import choose
    from orchestra.cli.follow import exit_code
    from orchestra.plan.status import at_rest

    engine, name = choose(args)
    end = time.monotonic() + args.timeout if args.timeout is not None else None
    while True:
        engine.look()
        job = engine.get(name)
        phase = job.status.phase if job.status else None
        if phase == args.phase:
            return exit_codes.OK
        if at_rest(job):
            print(f"{name} is {phase}, and will not be {args.phase}")
            return exit_code(job) or exit_codes.ERROR
        if end is not None and time.monotonic() > end:
            print(f"{name} is still {phase}")
            return exit_codes.NOT_FINISHED
        time.sleep(engine.tick)
