"""`status`: one job on one screen."""

from __future__ import annotations

import argparse
import time

from orchestra.cli import exit_codes

EPILOG = """\
The exit code is the job's: 0 succeeded, 100 failed, 101 not finished, 103 suspended or cancelled.

examples:
  {program} status
  {program} status my-job -o json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    add_job_argument(parser)
    parser.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml", "name"), default="table")
    parser.add_argument("-w", "--watch", action="store_true", help="show it again whenever something changes")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def run(args: argparse.Namespace) -> int:
    """Prints the page; the exit code tells how the job stands."""
    from orchestra.cli.engines import choose, next_line
    from orchestra.cli.follow import exit_code
    from orchestra.cli.job_view import status_page
    from orchestra.cli.structured import print_objects
    from orchestra.cli.terminal import Paint, colours_wanted
    from orchestra.plan.status import status_of

    engine, name = choose(args)
    paint = Paint(colours_wanted(args.color))
    shown = None
    while True:
        job = engine.get(name)
        if args.output in ("json", "yaml", "name"):
            print_objects(job, args.output)
        else:
            text = status_page(job, engine.events(name), engine.losses(name), engine.places(name), paint)
            if text != shown:
                print(f"{text}\n{next_line(args, f'{_next(status_of(job).phase)} {name}')}", flush=True)
                shown = text
        code = exit_code(job)
        if not args.watch or code != exit_codes.NOT_FINISHED:
            return code
        time.sleep(1)


def _next(phase: str | None) -> str:
    return {"Failed": "logs", "Suspended": "resume", "Succeeded": "logs", "Queued": "why"}.get(phase or "", "logs -f")
