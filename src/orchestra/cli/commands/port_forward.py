"""`port-forward`: a port of the pod where a rank runs, on this machine."""

from __future__ import annotations

import argparse

EPILOG = """\
examples:
  {program} port-forward my-job 6006                 # TensorBoard beside rank 0
  {program} port-forward my-job --rank 3 9000:5678   # a debugger that rank 3 waits with
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.pods import add_pod_arguments

    add_pod_arguments(parser)
    parser.add_argument("ports", nargs="+", metavar="[HERE:]THERE", help="ports")


def run(args: argparse.Namespace) -> int:
    """Becomes kubectl port-forward."""
    from orchestra.cli.kubectl import become, kubectl_words
    from orchestra.cli.pods import choose_pod

    engine, pod = choose_pod(args)
    return become([*kubectl_words(args, engine.namespace), "port-forward", f"pod/{pod.metadata.name}", *args.ports])
