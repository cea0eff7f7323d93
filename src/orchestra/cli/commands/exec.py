"""`exec`: a command in the pod where a rank runs."""

from __future__ import annotations

import argparse

EPILOG = """\
The pod is found by what the agents report, never by counting. Everything after -- is the command; a shell without it.

examples:
  {program} exec my-job --rank 8 -- nvidia-smi
  {program} exec my-job --node 1
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.pods import add_pod_arguments

    add_pod_arguments(parser)
    parser.usage = "%(prog)s [options] [JOB] [-- COMMAND]"


def run(args: argparse.Namespace) -> int:
    """Becomes kubectl exec."""
    import sys

    from orchestra.cli.kubectl import become, kubectl_words
    from orchestra.cli.pods import choose_pod

    engine, pod = choose_pod(args)
    interactive = ["-i", "-t"] if sys.stdin.isatty() and sys.stdout.isatty() else ["-i"]
    command = args.rest or ["sh"]
    where = [pod.metadata.name, "-c", pod.trainer]
    return become([*kubectl_words(args, engine.namespace), "exec", *interactive, *where, "--", *command])
