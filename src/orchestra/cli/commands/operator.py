"""`operator`: the controller itself, in a cluster or on this machine for development."""

from __future__ import annotations

import argparse
import sys

from orchestra.cli import exit_codes

EPILOG = """\
On your own machine it uses your kubeconfig and your rights. Where one is installed already, scale that one down first:
  kubectl -n orchestra-system scale deployment orchestra-operator --replicas=0

examples:
  {program} operator
  {program} operator --namespaces team-a,team-b --health 127.0.0.1:8080
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.operator.options import add_arguments

    add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Until it is told to stop."""
    from orchestra.cli.cluster_access import require_cluster_packages

    require_cluster_packages()
    from orchestra.kube.config import ConfigError
    from orchestra.kube.lease import LeadershipLost
    from orchestra.operator.__main__ import serve

    try:
        return serve(args)
    except (ConfigError, LeadershipLost) as error:
        print(f"{args.program} operator: {error}", file=sys.stderr)
        return exit_codes.ERROR
