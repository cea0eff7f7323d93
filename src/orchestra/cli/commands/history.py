"""`history`: every run there ever was."""

from __future__ import annotations

import argparse
import shlex
import sys

from orchestra.cli import exit_codes

EPILOG = "A star behind the commit: the folder had changes that were not committed. `{program} diff JOB` shows them.\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_engine_arguments

    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    parser.add_argument("--no-headers", action="store_true", help="rows only")
    add_engine_arguments(parser, lists=True)


def run(args: argparse.Namespace) -> int:
    """Prints one row a run, oldest first."""
    from orchestra.cli.engines import choose_engine
    from orchestra.cli.structured import print_objects
    from orchestra.cli.terminal import table
    from orchestra.local.submitted_code import commit_text, snapshot_of
    from orchestra.plan.status import phase_condition, status_of

    engine = choose_engine(args)
    rows = engine.history()
    if engine.history_note:
        print(f"note: {engine.history_note}", file=sys.stderr)
    if args.output != "table":
        print_objects([row.job for row in rows], args.output)
        return exit_codes.OK
    cells = []
    for row in rows:
        job = row.job
        said, command = phase_condition(job), job.spec.command
        text = command if isinstance(command, str) else shlex.join(command)
        cells.append(
            [
                job.metadata.creation_timestamp or "",
                job.metadata.name,
                status_of(job).phase or "",
                said.reason if said else "",
                status_of(job).progress_text or "",
                (snapshot_of(job) or "")[:12],
                commit_text(job),
                "deleted" if row.deleted else "",
                " ".join(text.split()),
            ]
        )
    print(
        table(
            cells,
            ["SUBMITTED", "NAME", "PHASE", "REASON", "PROGRESS", "SNAPSHOT", "COMMIT", "", "COMMAND"],
            show_headers=not args.no_headers,
        )
    )
    return exit_codes.OK
