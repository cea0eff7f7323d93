"""`get`: jobs as Kubernetes shows objects."""

from __future__ import annotations

import argparse

from orchestra.cli import exit_codes

EPILOG = """\
examples:
  {program} get my-job -o yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_engine_arguments

    parser.add_argument("job", nargs="?", metavar="JOB", help="name of the job (default: all)")
    parser.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml", "name"), default="table")
    parser.add_argument("--no-headers", action="store_true", help="rows only")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints one job or all."""
    from orchestra.cli.engines import choose_engine
    from orchestra.cli.job_view import list_jobs
    from orchestra.cli.structured import print_objects
    from orchestra.cli.terminal import Paint, colours_wanted

    engine = choose_engine(args)
    jobs = [engine.get(args.job)] if args.job else engine.jobs()
    if args.output in ("json", "yaml", "name"):
        print_objects(jobs if not args.job else jobs[0], args.output)
    else:
        paint = Paint(colours_wanted(args.color))
        print(list_jobs(jobs, paint, wide=args.output == "wide", headers=not args.no_headers))
    return exit_codes.OK
