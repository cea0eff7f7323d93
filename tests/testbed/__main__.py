"""`python -m testbed up|down|status|logs`: the cluster for people. `make cluster` and `make cluster-down` call it."""

import argparse
import shlex
import sys
from pathlib import Path

from testbed import leftovers, packages, schedulers, steps
from testbed.cluster import CannotRunError, Cluster, NotUpError
from testbed.leftovers import ClusterBusyError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; what a program reads goes to stdout, what people read to stderr."""
    parser = argparse.ArgumentParser(prog="python -m testbed", description="Two real Kubernetes nodes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a cluster, or use the one that is up")
    up.add_argument("--scheduler", choices=["default", "coscheduling"], default="default")
    up.add_argument("--gpus", type=int, default=8, metavar="N", help="made-up GPUs a node (default: 8)")
    commands.add_parser("down", help="remove everything of the cluster from this machine")
    commands.add_parser("status", help="say whether a cluster is up and well")
    logs = commands.add_parser("logs", help="gather all logs in a folder")
    logs.add_argument("folder", nargs="?", type=Path, default=Path("build/testbed-logs/cluster"))
    asked = parser.parse_args(arguments)
    try:
        match asked.command:
            case "up":
                return _up(asked)
            case "down":
                return _down()
            case "status":
                return _status()
            case _:
                return _logs(asked.folder)
    except (CannotRunError, ClusterBusyError, NotUpError, packages.PackagesError) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1


def _up(asked: argparse.Namespace) -> int:
    say = steps.on_stderr()
    try:
        cluster = Cluster.attach()
        if asked.scheduler != "default":
            schedulers.use(cluster.control_plane, asked.scheduler)
        say("a cluster is up already")
    except NotUpError:
        cluster = Cluster(scheduler=asked.scheduler, gpus_per_node=asked.gpus, kept=True, say=say)
        cluster.start()
        say("the cluster is up; `make cluster-down` removes it")
    print(_export_line(cluster))
    return 0


def _export_line(cluster: Cluster) -> str:
    """What a shell evaluates to use the cluster."""
    kubeconfig, programs = shlex.quote(str(cluster.kubeconfig)), shlex.quote(str(cluster.programs))
    return f'export KUBECONFIG={kubeconfig} PATH={programs}:"$PATH"'


def _down() -> int:
    say = steps.on_stderr()
    with leftovers.the_one_cluster("make cluster-down"):
        removed = leftovers.clear()
    say("the cluster is gone" if removed else "there was no cluster")
    return 0


def _status() -> int:
    cluster = Cluster.attach()
    print(cluster.kubectl("get", "nodes", "-o", "wide"), end="")
    print(_export_line(cluster))
    return 0


def _logs(folder: Path) -> int:
    print(Cluster.attach(must_be_well=False).gather_logs(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
