"""`resume`: go on from the last checkpoint."""

from __future__ import annotations

import argparse
from typing import Any

from orchestra.cli import exit_codes

EPILOG = """\
examples:
  {program} resume my-job
  {program} resume my-job --set numNodes=1 --set procsPerNode=4
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    add_job_argument(parser)
    parser.add_argument(
        "--set", action="append", default=[], type=assignment, metavar="FIELD=VALUE", help="change a field of the spec"
    )


def assignment(text: str) -> tuple[str, Any]:
    """`numNodes=1` -> ("numNodes", 1). Values are YAML."""
    import yaml

    path, equals, value = text.partition("=")
    if not equals or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE")
    return path.removeprefix("spec."), yaml.safe_load(value) if value else None


def run(args: argparse.Namespace) -> int:
    """Resumes it."""
    from orchestra.cli.engines import choose, next_line

    engine, name = choose(args)
    job = engine.resume(name, dict(args.set))
    progress = job.status.progress if job.status else None
    step = progress.checkpoint_step if progress else None
    print(f"{name} resumes" + (f" from step {step}" if step is not None else ""))
    print(next_line(args, f"logs -f {name}"))
    return exit_codes.OK
