"""`debug`: a container with tools beside a rank, seeing its processes."""

from __future__ import annotations

import argparse

EPILOG = """\
An ephemeral container joins the pod: it sees the trainer's processes and goes with the pod. Nothing is restarted.

examples:
  {program} debug my-job --rank 3 --image busybox
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.pods import add_pod_arguments

    add_pod_arguments(parser)
    parser.add_argument("--image", default="busybox", help="image with the tools (default: busybox)")
    parser.usage = "%(prog)s [options] [JOB] [-- COMMAND]"


def run(args: argparse.Namespace) -> int:
    """Becomes kubectl debug."""
    import sys

    from orchestra.cli.kubectl import become, kubectl_words
    from orchestra.cli.pods import choose_pod

    engine, pod = choose_pod(args)
    interactive = ["-i", "-t"] if sys.stdin.isatty() and sys.stdout.isatty() else ["-i"]
    tools = ["--image", args.image, "--target", pod.trainer, "--profile", "general"]
    command = args.rest or ["sh"]
    words = kubectl_words(args, engine.namespace)
    return become([*words, "debug", *interactive, pod.metadata.name, *tools, "--", *command])
