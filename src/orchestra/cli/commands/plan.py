"""`plan`: what would run and why, before it does."""

from __future__ import annotations

import argparse
import sys

from orchestra.cli import exit_codes

EPILOG = """\
A job's queue is looked for among the files. Addresses are those of a job's first attempt in a cluster.
-o json has every node's argv and env: an object for one job, a list for several.

examples:
  {program} plan job.yaml queue.yaml
  {program} plan examples/multi-node.yaml -o json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.manifests import add_files_argument

    add_files_argument(parser)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="how to print it")


def run(args: argparse.Namespace) -> int:
    """0 when every job can be planned, 1 otherwise."""
    from orchestra.cli.manifests import load_named, plan_document, report
    from orchestra.cli.plan_view import show_plan
    from orchestra.cli.structured import print_structured

    loaded = load_named(args)
    if loaded is None:
        return exit_codes.USAGE
    plans, problems = [], list(loaded.problems)
    for document in loaded.jobs:
        outcome = plan_document(document, loaded)
        if isinstance(outcome, list):
            problems += outcome
        elif not document.broken:
            plans.append(outcome)
    report(problems, loaded)
    if not plans and not problems:
        print("no TorchrunJob in these files", file=sys.stderr)
        return exit_codes.ERROR
    if plans and args.output != "table":
        print_structured(plans[0] if len(plans) == 1 and not problems else plans, args.output)
    elif plans:
        print("\n\n".join(show_plan(one) for one in plans))
    return exit_codes.ERROR if problems else exit_codes.OK
