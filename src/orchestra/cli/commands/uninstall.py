"""`uninstall`: the operator out of a cluster."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from orchestra.cli import exit_codes

if TYPE_CHECKING:
    from orchestra.kube.config import Access

EPILOG = """\
Jobs, queues and their definitions stay, and are served again after the next install. It refuses while jobs are not
finished or finalizers are left that only the operator removes; --force clears those. Retained claims always stay.

examples:
  {program} uninstall
  {program} uninstall --everything --dry-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.cluster_access import add_cluster_arguments

    parser.add_argument("--everything", action="store_true", help="also the CRDs, so every job and queue")
    parser.add_argument("--force", action="store_true", help="though jobs run or finalizers are left: clear them")
    parser.add_argument("--namespaces", default="", help="those it served, where its Deployment is gone already")
    parser.add_argument("--dry-run", action="store_true", help="tell what would be deleted, and change nothing")
    add_cluster_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Removes it."""
    from orchestra.cli.cluster_access import cluster_access

    asyncio.run(_uninstall(cluster_access(args), args))
    return exit_codes.OK


async def _uninstall(access: Access, args: argparse.Namespace) -> None:
    from orchestra.cli.cluster_access import told_in_words
    from orchestra.kube.client import Client
    from orchestra.operator.uninstall import uninstall

    async with Client(access, manager="orchestra-install") as client:
        with told_in_words():
            await uninstall(
                client,
                lambda text: print(text, flush=True),
                namespaces=tuple(name for name in args.namespaces.split(",") if name),
                everything=args.everything,
                force=args.force,
                dry_run=args.dry_run,
            )
