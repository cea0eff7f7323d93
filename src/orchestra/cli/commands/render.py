"""`render`: a job as the manifests of another deployment, for clusters without our operator."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from orchestra.cli import exit_codes

if TYPE_CHECKING:
    from orchestra.api import TorchrunJob, TorchrunQueue
    from orchestra.api.load import Document, Loaded
    from orchestra.api.problem import Problem
    from orchestra.render import Rendered, Unexpressed

EPILOG = """\
The manifests go to standard output, or one file an object into -o DIR. What the target cannot express is a warning
with the field's place in your file; --strict makes it an error. Apply them with kubectl, or with kubectl -k after
--kustomize.

examples:
  {program} render --target statefulset job.yaml queue.yaml | kubectl apply -f -
  {program} render --target job --plain -o out/ job.yaml queue.yaml
  {program} render --target trainjob --kustomize -o out/ job.yaml queue.yaml && kubectl apply -k out/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    add_rendering_arguments(parser)
    parser.add_argument("-o", "--output", metavar="DIR", help="write one file an object into this folder")
    parser.add_argument("--kustomize", action="store_true", help="with -o: write a kustomization.yaml too")


def add_rendering_arguments(parser: argparse.ArgumentParser) -> None:
    """What to render, and how; `apply` takes the same."""
    from orchestra.cli.manifests import add_files_argument
    from orchestra.plan.where import ETCD_IMAGE
    from orchestra.render.model import TARGETS

    add_files_argument(parser)
    parser.add_argument("-t", "--target", choices=TARGETS, required=True, help="the kind of deployment")
    parser.add_argument("--plain", action="store_true", help="a shell script instead of the agent; needs no Python")
    parser.add_argument("--strict", action="store_true", help="fail when the target cannot express a field")
    parser.add_argument("--image", help="image, where neither queue nor job names one")
    parser.add_argument("--sync-image", metavar="IMAGE", help="image with the aws program, for uploads")
    parser.add_argument("--etcd-image", metavar="IMAGE", default=ETCD_IMAGE, help="image of etcd, for etcd-v2")
    parser.add_argument("--ssh", action="store_true", help="the image has sshd: use the MPI runtime for deepspeed")


def run(args: argparse.Namespace) -> int:
    """0 when every job is rendered, 1 otherwise, 2 when nothing is named."""
    if args.kustomize and not args.output:
        print(f"{args.program} render: --kustomize needs -o DIR", file=sys.stderr)
        return exit_codes.USAGE
    rendered = render_named(args)
    if isinstance(rendered, int):
        return rendered
    if args.output:
        _write(args, rendered)
    else:
        print(rendered.text, end="")
    return exit_codes.OK


def render_named(args: argparse.Namespace) -> Rendered | int:
    """All jobs of the named files; an exit code, with everything said, when one cannot be rendered."""
    from orchestra.cli.manifests import load_named, report

    loaded = load_named(args)
    if loaded is None:
        return exit_codes.USAGE
    rendered, problems = _render_all(args, loaded)
    report(problems, loaded)
    if problems:
        return exit_codes.ERROR
    if not rendered.manifests:
        print("no TorchrunJob in these files", file=sys.stderr)
        return exit_codes.ERROR
    return rendered


def _render_all(args: argparse.Namespace, loaded: Loaded) -> tuple[Rendered, list[Problem]]:
    """All jobs of the files as one; objects that jobs share (the agent's ConfigMap, a queue) once."""
    from orchestra.cli.manifests import plan_document
    from orchestra.render import Rendered

    together, problems = Rendered(), list(loaded.problems)
    for document in loaded.jobs:
        outcome = plan_document(document, loaded)
        if isinstance(outcome, list):
            problems += outcome
            continue
        if document.broken:
            continue
        one = _render_one(args, document, loaded)
        if isinstance(one, list):
            problems += one
            continue
        together.manifests += [manifest for manifest in one.manifests if manifest not in together.manifests]
        for note in one.notes:
            print(f"note: {document.object.metadata.name}: {note}", file=sys.stderr)
    return together, problems


def _render_one(args: argparse.Namespace, document: Document[TorchrunJob], loaded: Loaded) -> Rendered | list[Problem]:
    from orchestra.api.problem import Invalid
    from orchestra.plan.queues import queue_for
    from orchestra.render import Options, Unexpressed, render

    queue = queue_for(document.object, [one.object for one in loaded.queues])
    if queue is None:
        return []  # reported when it was planned
    options = Options(args.plain, args.image, args.sync_image, args.etcd_image, args.ssh)
    try:
        rendered = render(queue, document.object, args.target, options, strict=args.strict)
    except Invalid as invalid:
        return [
            _placed(problem, document, queue, loaded)
            if isinstance(problem, Unexpressed)
            else problem.at(document.place(problem.path))
            for problem in invalid.problems
        ]
    for warning in rendered.warnings:
        placed = _placed(warning, document, queue, loaded)
        print(f"{placed.place}: warning: {placed.path}: {placed.words}", file=sys.stderr)
    return rendered


def _placed(warning: Unexpressed, job: Document[TorchrunJob], queue: TorchrunQueue, loaded: Loaded) -> Problem:
    """A warning stands where the field does, in the job or in its queue."""
    if warning.kind == "TorchrunJob":
        return warning.at(job.place(warning.path))
    found = next(one for one in loaded.queues if one.object is queue)
    return warning.at(found.place(warning.path))


def _write(args: argparse.Namespace, rendered: Rendered) -> None:
    from pathlib import Path

    from orchestra.render.model import kustomization

    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    files = rendered.files()
    names = list(files)
    if args.kustomize:
        namespaces = {one["metadata"].get("namespace") for one in rendered.manifests}
        files["kustomization.yaml"] = kustomization(names, namespaces.pop() if len(namespaces) == 1 else None)
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
        print(folder / name)
    flag = f"-k {folder}" if args.kustomize else f"-f {folder}"
    print(f"next: kubectl apply {flag}", file=sys.stderr)
