"""`convert`: someone's existing manifests, or a launch line, as a queue and a job."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.cli import exit_codes

if TYPE_CHECKING:
    from orchestra.api.problem import Problem
    from orchestra.render.convert import Converted

EPILOG = """\
Understands a PyTorchJob, a TrainJob with its TrainingRuntime, a StatefulSet with its Service, a Job with the ConfigMap
of its script, and a torchrun or deepspeed command line. Queue and job go to standard output; what was understood,
guessed and left out to standard error. Nothing is lost silently: a field without a word of ours is listed.

examples:
  {program} convert stateful-set.yaml train-rdzv.yaml > job.yaml
  {program} convert --command "torchrun --nproc-per-node=8 train.py --epochs 3"
  kubectl get pytorchjob finetune -o yaml | {program} convert - | {program} validate -
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.manifests import add_files_argument

    add_files_argument(parser)
    parser.add_argument("--command", metavar="LINE", help="a launch line, instead of files")
    parser.add_argument("--name", default="job", help="with --command: name of the job")
    parser.add_argument("-q", "--quiet", action="store_true", help="only say what was guessed and left out")


def run(args: argparse.Namespace) -> int:
    """0 when everything was converted, 1 when something could not be, 2 when nothing is named."""
    from orchestra.api.problem import Invalid

    if bool(args.command) == bool(args.files or args.filename):
        print(f"{args.program} convert: name files, or give --command", file=sys.stderr)
        return exit_codes.USAGE
    try:
        converted, problems = _converted(args)
    except Invalid as invalid:
        converted, problems = [], invalid.problems
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems or not converted:
        return exit_codes.ERROR
    _show(converted, args.quiet)
    return exit_codes.OK


def _converted(args: argparse.Namespace) -> tuple[list[Converted], list[Problem]]:
    from orchestra.render.convert import convert, convert_command, workloads_in

    if args.command:
        return [convert_command(args.command, args.name)], []
    manifests, problems = _read([*args.files, *args.filename])
    workloads = workloads_in(manifests)
    if len(workloads) < 2:
        return ([] if problems else [convert(manifests)]), problems
    others = [one for one in manifests if one not in workloads]
    return [convert([one, *others]) for one in workloads], problems


def _read(files: list[str]) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The plain objects of all files; a List is its items."""
    from orchestra.api.problem import Place, Problem
    from orchestra.api.source import read_documents

    manifests: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for file in _expanded(files):
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            problems.append(Problem("", f"cannot be read: {reason}", place=Place(file, 1, 1)))
            continue
        nodes, wrong = read_documents(text, "<stdin>" if file == "-" else file)
        problems += wrong
        for node in nodes:
            value = node.plain()
            items = value.get("items") if isinstance(value, dict) and value.get("kind") == "List" else [value]
            manifests += [one for one in items or [] if isinstance(one, dict)]
    return manifests, problems


def _expanded(files: list[str]) -> list[str]:
    """A folder stands for the manifests below it."""
    found: list[str] = []
    for file in files:
        below = sorted(str(one) for one in Path(file).rglob("*") if one.suffix in (".yaml", ".yml", ".json"))
        found += below if file != "-" and Path(file).is_dir() else [file]
    return found


def _show(converted: list[Converted], quiet: bool) -> None:
    from orchestra.render.torchrunjob import torchrunjob
    from orchestra.render.yaml_text import to_yaml

    print("---\n".join(to_yaml(one) for each in converted for one in torchrunjob(each.queue, each.job)), end="")
    for each in converted:
        sections = {"guessed": each.guessed, "left out": each.left_out}
        if not quiet:
            sections = {"understood": each.understood, **sections}
        for title, lines in sections.items():
            for line in lines:
                print(f"{each.job.metadata.name}: {title}: {line}", file=sys.stderr)
