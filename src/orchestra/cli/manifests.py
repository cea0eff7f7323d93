"""Reading the manifests that a command line names, and saying what is wrong with them."""

from __future__ import annotations

import argparse
import sys

from orchestra.api.job import TorchrunJob
from orchestra.api.load import Document, Loaded, load
from orchestra.api.problem import Invalid, Problem
from orchestra.api.queue import TorchrunQueue
from orchestra.api.spelling import nearest
from orchestra.plan import Plan, plan
from orchestra.plan.queues import queue_for


def add_files_argument(parser: argparse.ArgumentParser) -> None:
    """`FILE...` with its several spellings."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="manifests, folders of them, or - for standard input")
    parser.add_argument(
        "-f", "--filename", action="append", default=[], metavar="FILE", help="the same, as kubectl users write it"
    )


def load_named(args: argparse.Namespace) -> Loaded | None:
    """All that the command line names; None (with the usage said) when it names nothing."""
    files = [*args.files, *args.filename]
    if not files:
        print(f"{args.program} {args.verb}: name at least one file or folder", file=sys.stderr)
        return None
    return load(files)


def plan_document(document: Document[TorchrunJob], loaded: Loaded) -> Plan | list[Problem]:
    """The plan of a job, or why there is none, each reason with its place in the file."""
    job = document.object
    queues = _queues(loaded)
    queue = queue_for(job, queues)
    if queue is None:
        return document.believable([_no_queue(job, queues)])
    try:
        return plan(queue, job)
    except Invalid as invalid:
        return document.believable(invalid.problems)


def misfits(loaded: Loaded) -> list[Problem]:
    """Why jobs cannot run on their queues, for those whose queue is among the files."""
    found: list[Problem] = []
    for document in loaded.jobs:
        if queue_for(document.object, _queues(loaded)) is not None:
            outcome = plan_document(document, loaded)
            found += outcome if isinstance(outcome, list) else []
    return found


def _queues(loaded: Loaded) -> list[TorchrunQueue]:
    return [document.object for document in loaded.queues]


def _no_queue(job: TorchrunJob, queues: list[TorchrunQueue]) -> Problem:
    guess = nearest(job.spec.job_queue, [queue.metadata.name for queue in queues])
    mend = f"did you mean {guess}?" if guess else "add its file"
    return Problem("spec.jobQueue", f"there is no TorchrunQueue {job.spec.job_queue!r} in these files", mend)


def report(problems: list[Problem], loaded: Loaded) -> None:
    """Problems, and what was passed over, to standard error."""
    for problem in sorted(problems, key=lambda problem: (problem.place is None, problem.place)):
        print(problem, file=sys.stderr)
    for place, what in loaded.foreign:
        print(f"{place}: note: {what} is not ours; not checked", file=sys.stderr)
