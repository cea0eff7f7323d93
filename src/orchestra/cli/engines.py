"""Which engine a command means, and which job."""

from __future__ import annotations

import argparse
from pathlib import Path

from orchestra.api.engine import NotFound
from orchestra.local.engine import LocalEngine


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Where jobs run."""
    parser.add_argument("--local", action="store_true", help="this machine (the only engine so far)")


def add_job_argument(parser: argparse.ArgumentParser) -> None:
    """`JOB`, by default the newest of this folder."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="name of the job (default: the newest of this folder)")
    add_engine_arguments(parser)


def choose_engine(args: argparse.Namespace) -> LocalEngine:  # noqa: ARG001 -- the cluster's engine will look at them
    """The engine that a command line means."""
    return LocalEngine()


def choose_job(args: argparse.Namespace, engine: LocalEngine) -> str:
    """The job that a command line means."""
    if args.job:
        return str(args.job)
    newest = engine.newest(Path.cwd())
    if newest is None:
        raise NotFound(f"no job was submitted from this folder; {args.program} list shows all")
    return newest
