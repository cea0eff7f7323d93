"""`doctor`: what is missing, and the command that mends it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from orchestra.cli import exit_codes

if TYPE_CHECKING:
    from orchestra.api.doctor import Finding

EPILOG = """\
Looks at this machine and, where there is a kubeconfig, at the cluster with your own rights. Changes nothing.
The exit code is 1 when something is missing without which jobs do not run.

examples:
  {program} doctor
  {program} doctor -n team-a -o json
  {program} doctor --job job.yaml      # from inside the job's own workers: network, versions, GPUs, storage
"""

_SIGNS = {"ok": ("✓", "green"), "missing": ("✗", "red"), "warning": ("!", "yellow"), "unknown": ("?", "grey")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_engine_arguments

    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    parser.add_argument("--job", metavar="FILE", help="check from inside workers like those of this job, then end them")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the bandwidth test of --job (default: 20)")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for --job's workers to start")
    parser.add_argument("--cpu", action="store_true", help="with --job: ranks as CPU processes with gloo")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Looks everywhere, then tells."""
    from orchestra.cli.structured import print_structured
    from orchestra.cli.terminal import Paint, colours_wanted

    sections = _sections(args)
    missing = any(one.state == "missing" for findings in sections.values() for one in findings)
    code = exit_codes.ERROR if missing else exit_codes.OK
    if args.output != "table":
        print_structured(sections, args.output)
        return code
    paint = Paint(colours_wanted(args.color))
    for where, findings in sections.items():
        print(paint(where, "bold"))
        for one in findings:
            sign, colour = _SIGNS[one.state]
            print(f"  {paint(sign, colour)} {one.about:<20} {one.message}")
            if one.mend and one.state != "ok":
                print(f"      mend: {one.mend.replace('orchestra ', f'{args.program} ', 1)}")
    return code


def _sections(args: argparse.Namespace) -> dict[str, list[Finding]]:
    """What was found, by place."""
    from orchestra.api.doctor import Finding
    from orchestra.api.engine import EngineError
    from orchestra.cli.engines import cluster_engine, means_cluster
    from orchestra.local.doctor import examine

    if args.job:
        return _of_job(args)
    sections = {"this machine": examine()}
    if not means_cluster(args):
        return sections
    try:
        engine = cluster_engine(args)
    except EngineError as error:
        sections["cluster"] = [Finding("kubeconfig", "missing", str(error))]
        return sections
    sections[engine.where] = engine.doctor()
    return sections


def _of_job(args: argparse.Namespace) -> dict[str, list[Finding]]:
    from orchestra.api.engine import EngineError
    from orchestra.api.load import load
    from orchestra.cli.engines import choose_engine
    from orchestra.cli.manifests import report
    from orchestra.cli.preflight import preflight
    from orchestra.plan.queues import queue_for

    loaded = load([args.job])
    report(loaded.problems, loaded)
    if loaded.problems or len(loaded.jobs) != 1:
        raise EngineError(f"{args.job} must hold one valid TorchrunJob")
    job = loaded.jobs[0].object
    queue = queue_for(job, [document.object for document in loaded.queues])
    engine = choose_engine(args)
    found = preflight(engine, job, queue, cpu=args.cpu, seconds=args.seconds, patience=args.patience)
    return {f"the workers of {job.metadata.name}, on {engine.where}": found}
