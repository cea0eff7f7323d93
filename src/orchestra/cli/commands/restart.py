"""`restart`: the ranks anew in the running pods, with whatever code lies there now."""

from __future__ import annotations

import argparse
import sys

from orchestra.cli import exit_codes

EPILOG = """\
All ranks save at one agreed step, end, and start again in the same pods: no pod is recreated, nothing is scheduled. A
script without our library starts from its own last checkpoint. If one worker does not answer, none is stopped.

examples:
  {program} cp my-job train.py :/app/train.py && {program} restart my-job
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    parser.add_argument("--grace", type=float, default=120.0, metavar="SECONDS", help="time to save (default: 120)")
    add_job_argument(parser)
    parser.set_defaults(rank=None, node=None)


def run(args: argparse.Namespace) -> int:
    """0 when all ranks started again."""
    from orchestra.cli.kubectl import kubectl_words
    from orchestra.cli.pods import choose_pods
    from orchestra.cli.restarting import Worker, restart

    engine, pods = choose_pods(args)
    words = [*kubectl_words(args, engine.namespace), "exec", "-i"]
    workers = [Worker(pod.metadata.name, [*words, pod.metadata.name, "-c", pod.trainer, "--"]) for pod in pods]
    restart(workers, args.grace, lambda text: print(text, file=sys.stderr))
    print(f"started again in {len(workers)} pods; {args.program} logs -f shows it", file=sys.stderr)
    return exit_codes.OK
