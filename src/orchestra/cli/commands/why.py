"""`why`: the true cause, never a guess."""

from __future__ import annotations

import argparse

from orchestra.cli import exit_codes

EPILOG = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    add_job_argument(parser)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")


def run(args: argparse.Namespace) -> int:
    """Prints the causes, most important first."""
    from orchestra.cli.engines import choose
    from orchestra.cli.structured import print_structured

    engine, name = choose(args)
    causes = engine.why(name)
    if args.output != "table":
        print_structured(causes, args.output)
        return exit_codes.OK
    job = engine.get(name)
    print(f"{name} is {job.status.phase if job.status else 'unknown'}")
    for cause in causes:
        print(f"  {cause.about}: {cause.message}")
        if cause.mend:
            print(f"  mend: {cause.mend.replace('orchestra ', f'{args.program} ', 1)}")
    return exit_codes.OK
