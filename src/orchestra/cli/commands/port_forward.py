"""`port-forward`: a port of the pod where a rank runs, on this machine."""

from __future__ import annotations

import argparse
import re
import sys

from orchestra.cli import exit_codes

_PORTS = re.compile(r"[0-9]*:?[0-9]+")

EPILOG = """\
examples:
  {program} port-forward my-job 6006                 # TensorBoard beside rank 0
  {program} port-forward my-job --rank 3 9000:5678   # a debugger that rank 3 waits with
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.pods import add_pod_choice

    parser.usage = "%(prog)s [options] [JOB] [HERE:]THERE..."
    parser.add_argument("words", nargs="+", metavar="[JOB] [HERE:]THERE", help="name of the job, and ports")
    add_pod_choice(parser)


def run(args: argparse.Namespace) -> int:
    """Becomes kubectl port-forward."""
    from orchestra.cli.kubectl import become, kubectl_words
    from orchestra.cli.pods import choose_pod

    named = not _PORTS.fullmatch(args.words[0])
    args.job, ports = args.words[0] if named else None, args.words[1:] if named else args.words
    if not ports or not all(map(_PORTS.fullmatch, ports)):
        print(f"{args.program} port-forward: name ports, such as 6006 or 9000:5678", file=sys.stderr)
        return exit_codes.USAGE
    engine, pod = choose_pod(args)
    return become([*kubectl_words(args, engine.namespace), "port-forward", f"pod/{pod.metadata.name}", *ports])
