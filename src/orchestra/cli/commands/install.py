"""`install`: the operator into a cluster."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from orchestra.cli import exit_codes
from orchestra.cli.commands.logs import duration

if TYPE_CHECKING:
    from orchestra.kube.config import Access
    from orchestra.operator.manifests import Installation

EPILOG = """\
Applies the same objects as config/ and the chart, and waits until the operator is ready. Doing it again, or with a
newer version, upgrades. With --namespaces the operator gets Roles in those alone; what it then cannot do is told.

examples:
  {program} install --image registry.example/team/orchestra:1.0
  {program} install --namespaces team-a,team-b
  {program} install -o yaml > orchestra.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.cluster_access import add_cluster_arguments
    from orchestra.operator.manifests import IMAGE

    parser.add_argument("--image", default=IMAGE, help="the operator's image (default: %(default)s)")
    parser.add_argument("--namespaces", default="", help="serve only these, separated by commas, with Roles alone")
    parser.add_argument("--workspace-store", action="store_true", help="also a store for folders that are submitted")
    parser.add_argument("--dry-run", action="store_true", help="let the server check it all, and change nothing")
    parser.add_argument("-o", "--output", choices=("yaml",), help="print the objects; no cluster is needed")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until the operator is ready")
    parser.add_argument("--timeout", type=duration, default=300.0, metavar="TIME", help="how long (default: 5m)")
    add_cluster_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Installs."""
    from orchestra.cli.cluster_access import cluster_access, require_cluster_packages
    from orchestra.operator.manifests import Installation
    from orchestra.operator.rights import lost_without_cluster_rights

    require_cluster_packages()
    namespaces = tuple(name for name in args.namespaces.split(",") if name)
    made = Installation(image=args.image, namespaces=namespaces, workspace_store=args.workspace_store)
    if made.namespaces:
        for lost in lost_without_cluster_rights():
            print(f"only {', '.join(made.namespaces)}: {lost}", file=sys.stderr)
    if args.output:
        _print(made)
        return exit_codes.OK
    asyncio.run(_install(cluster_access(args), made, args))
    return exit_codes.OK


async def _install(access: Access, made: Installation, args: argparse.Namespace) -> None:
    from orchestra.cli.cluster_access import told_in_words
    from orchestra.kube.client import Client
    from orchestra.operator.install import install, wait_ready

    async with Client(access, manager="orchestra-install") as client:
        with told_in_words():
            await install(client, made, print, dry_run=args.dry_run)
            if not args.dry_run and not args.no_wait:
                await wait_ready(client, made, lambda text: print(text, flush=True), timeout=args.timeout)


def _print(made: Installation) -> None:
    import yaml

    from orchestra.operator.install import as_builtins, manifests

    print(yaml.safe_dump_all(as_builtins(manifests(made)), sort_keys=False, width=110), end="")
