"""`apply`: render a job for a cluster without our operator, and create it there."""

from __future__ import annotations

import argparse
import sys

from orchestra.cli import exit_codes

EPILOG = """\
The same as `render ... | kubectl apply -f -`, but every object is tried before one is created, and nothing that render
did not write is touched. Then list, status, logs, why, wait, scale, suspend, resume and delete work on it.

examples:
  {program} apply --target statefulset job.yaml queue.yaml
  {program} apply --target pytorchjob -n team job.yaml queue.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.commands.render import add_rendering_arguments
    from orchestra.cli.engines import add_cluster_arguments

    add_rendering_arguments(parser)
    add_cluster_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """0 when everything is there, 1 otherwise."""
    from orchestra.cli.commands.render import render_named
    from orchestra.cli.engines import rendered_engine

    rendered = render_named(args)
    if isinstance(rendered, int):
        return rendered
    engine = rendered_engine(args)
    engine.apply(rendered.objects, lambda text: print(text, file=sys.stderr))
    names = sorted({one["metadata"].get("labels", {}).get("torchrun-job-name", "") for one in rendered.objects} - {""})
    print(f"{args.program} logs -f {names[0] if names else 'JOB'} follows it", file=sys.stderr)
    return exit_codes.OK
