"""`scale`: another number of nodes."""

from __future__ import annotations

import argparse
import sys

from orchestra.cli import exit_codes

EPILOG = """\
A rendered StatefulSet: all pods save and end, then the new world starts from the checkpoint. A TorchrunJob with
`elastic` keeps running: its new bounds are taken in at the next round. Any other is suspended and resumed:
  {program} suspend my-job && {program} resume my-job --set numNodes=3

examples:
  {program} scale my-job --nodes 3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    parser.add_argument("--nodes", type=int, required=True, metavar="N", help="nodes")
    add_job_argument(parser)


def run(args: argparse.Namespace) -> int:
    """0 when the new size is asked for."""
    from orchestra.api.engine import EngineError
    from orchestra.cli.engines import choose
    from orchestra.cluster.engine import KubernetesEngine

    engine, name = choose(args)
    if not isinstance(engine, KubernetesEngine):
        raise EngineError(f"{name} runs on this machine; resume {name} --set numNodes={args.nodes} after a suspend")
    job = engine.scale(name, args.nodes)
    print(f"{name}: {job.spec.num_nodes or args.nodes} nodes", file=sys.stderr)
    print(f"{args.program} status {name} shows how it goes on", file=sys.stderr)
    return exit_codes.OK
