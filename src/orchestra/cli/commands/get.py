"""`get`: jobs as Kubernetes shows objects."""

from __future__ import annotations

import argparse
import time

from orchestra.cli import exit_codes

EPILOG = """\
examples:
  {program} get my-job -o yaml
  {program} get -A -l team=vision -o name
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_engine_arguments

    parser.add_argument("job", nargs="?", metavar="JOB", help="name of the job (default: all)")
    parser.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml", "name"), default="table")
    parser.add_argument("-w", "--watch", action="store_true", help="show it again whenever something changes")
    parser.add_argument("--no-headers", action="store_true", help="rows only")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    add_engine_arguments(parser, lists=True)


def run(args: argparse.Namespace) -> int:
    """Prints one job or all."""
    from orchestra.cli.engines import choose, choose_engine, listed
    from orchestra.cli.job_view import list_jobs
    from orchestra.cli.structured import print_objects
    from orchestra.cli.terminal import Paint, colours_wanted

    engine = choose(args)[0] if args.job else choose_engine(args)
    paint = Paint(colours_wanted(args.color))
    shown = None
    while True:
        jobs = [engine.get(args.job)] if args.job else listed(args, engine)
        if jobs != shown:
            shown = jobs
            if args.output in ("json", "yaml", "name"):
                print_objects(jobs if not args.job else jobs[0], args.output)
            else:
                wide, headers = args.output == "wide", not args.no_headers
                print(list_jobs(jobs, paint, wide=wide, headers=headers, namespaces=args.all_namespaces), flush=True)
        if not args.watch:
            return exit_codes.OK
        engine.look()
        time.sleep(max(1.0, engine.tick))
