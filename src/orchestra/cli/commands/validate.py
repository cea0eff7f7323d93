"""`validate`: every mistake in one go, where the user is."""

from __future__ import annotations

import argparse

from orchestra.cli import exit_codes

EPILOG = """\
A job is also planned when its queue is among the files, so that a size that cannot work is found here and not in
the cluster. Mistakes go to standard error as FILE:LINE:COLUMN: field: what is wrong; what would be right.

examples:
  {program} validate job.yaml queue.yaml
  {program} validate examples/
  cat job.yaml | {program} validate -
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.manifests import add_files_argument

    add_files_argument(parser)


def run(args: argparse.Namespace) -> int:
    """0 when all is well, 1 when anything is wrong."""
    from orchestra.cli.manifests import load_named, misfits, report

    loaded = load_named(args)
    if loaded is None:
        return exit_codes.USAGE
    problems = [*loaded.problems, *misfits(loaded)]
    report(problems, loaded)
    if problems:
        return exit_codes.ERROR
    if not loaded.jobs and not loaded.queues:
        print("nothing of ours in there")
        return exit_codes.OK
    print(f"valid: {_count(len(loaded.queues), 'queue')}, {_count(len(loaded.jobs), 'job')}")
    if loaded.jobs:
        print(f"next: {args.program} plan {' '.join([*args.files, *args.filename])}")
    return exit_codes.OK


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
