"""The verbs, and how one is loaded. Only the verb that is asked for is imported: `--help` must be instant."""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol, cast

# In the order in which a newcomer needs them.
VERBS: dict[str, str] = {
    "run": "run a job file or a command on this machine, and follow it",
    "submit": "the same; follows only where a person is looking",
    "init": "write the job file for a command",
    "list": "list jobs",
    "status": "show one job: progress, failure, events",
    "get": "show jobs as Kubernetes objects",
    "logs": "show the ranks' output",
    "events": "show what happened to a job",
    "why": "say why a job is where it is",
    "sync": "bring this folder's changes into a running job",
    "diff": "show what changed in this folder since a job's snapshot",
    "suspend": "save, stop and free the slots",
    "resume": "go on from the last checkpoint",
    "cancel": "stop a job for good",
    "delete": "stop and forget a job",
    "wait": "wait for a job",
    "history": "list every run there ever was",
    "queue": "list queues",
    "doctor": "say what is missing here or in the cluster, and what mends it",
    "validate": "check job and queue files; every mistake with its line",
    "plan": "show what would run and why, before it does",
    "render": "write the job as StatefulSet, Job, PyTorchJob or TrainJob",
    "apply": "render a job for a cluster without our operator, and create it there",
    "scale": "another number of nodes",
    "restart": "stop all ranks at one step and start them again in the same pods",
    "exec": "run a command in the pod of a rank",
    "cp": "copy files to all workers, or from one",
    "port-forward": "bring a port of a rank's pod to this machine",
    "debug": "a container with tools beside a rank",
    "secret": "create and list secrets for jobs",
    "convert": "turn existing manifests or a torchrun line into a job file",
    "install": "put the operator into a cluster",
    "uninstall": "remove the operator from a cluster",
    "operator": "run the operator itself",
    "completion": "print the completion script for your shell",
    "version": "print the version",
}


TAKE_A_COMMAND = ("exec", "debug")
"""Verbs with somebody else's command after `--`: it comes as `args.rest`."""
TAKE_WORDS = ("port-forward",)
"""Take words of which some are optional, with options between them."""


class Verb(Protocol):
    """What each module in `cli/commands` offers."""

    EPILOG: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the verb's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Does it; the result is the exit code."""


def load_verb(name: str) -> Verb:
    """The module of a verb."""
    return cast("Verb", importlib.import_module(f"orchestra.cli.commands.{name.replace('-', '_')}"))
