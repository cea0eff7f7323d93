"""`submit`: a job file or a command, to an engine; then what happens to it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from orchestra.cli import exit_codes

EPILOG = """\
A command needs no file: the built-in queue `local` describes this machine. `{program} init` writes the file.
Quote the command, or put -- before it. ^C leaves the job running and says how to come back.

examples:
  {program} run "python train.py --lr 1e-3" --procs 2
  {program} run -f job.yaml
  {program} submit -f examples/multi-node.yaml --cpu -d
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_engine_arguments

    parser.add_argument("what", nargs="*", metavar="FILE|COMMAND", help="a job file, or the command to run")
    parser.add_argument("-f", "--filename", action="append", default=[], metavar="FILE", help="a job file")
    parser.add_argument("--name", help="name of the job (default: from the command)")
    parser.add_argument("--queue", help="queue of the job (default: local)")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs in all")
    parser.add_argument("--nodes", type=int, metavar="N", help="nodes")
    parser.add_argument("--procs", type=int, metavar="N", help="processes a node")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="environment variable")
    parser.add_argument(
        "--launcher", choices=("auto", "torchrun", "deepspeed", "none"), help="who starts the processes"
    )
    parser.add_argument("--max-restarts", type=int, metavar="N", help="failures to survive")
    parser.add_argument("--cpu", action="store_true", help="run the ranks as CPU processes with gloo")
    parser.add_argument("--dry-run", action="store_true", help="list what would ship, and why the rest would not")
    parser.add_argument("--include", action="append", default=[], metavar="PATH", help="ship this although ignored")
    parser.add_argument("--in-place", action="store_true", help="run in this folder itself, not on a snapshot of it")
    parser.add_argument("-d", "--detach", action="store_true", help="do not follow")
    parser.add_argument("--follow", action="store_true", help="follow even where no person is looking")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Submits every job named, and follows if there is one."""
    from orchestra.api.engine import Submission
    from orchestra.cli.engines import choose_engine_to_submit, next_line
    from orchestra.cli.follow import follow
    from orchestra.cli.submissions import from_command, from_files
    from orchestra.cli.terminal import Paint, colours_wanted, is_terminal

    if not args.what and not args.filename:
        print(f"{args.program} {args.verb}: give a job file or a command", file=sys.stderr)
        return exit_codes.USAGE
    engine = choose_engine_to_submit(args)
    pairs = from_files(args) if args.filename or _is_file(args.what) else [from_command(args, engine)]
    if pairs is None:
        return exit_codes.ERROR
    if args.dry_run:
        from orchestra.cli.workspace_view import show_what_ships

        return show_what_ships(Path.cwd(), args.include, [job.metadata.name for job, _ in pairs])
    following = len(pairs) == 1 and not args.detach
    following = following and (args.follow or args.verb == "run" or is_terminal(sys.stdout))
    code = exit_codes.OK
    for job, queue in pairs:
        made = engine.submit(
            Submission(
                job=job,
                queue=queue,
                folder=str(Path.cwd()),
                cpu=args.cpu,
                in_place=args.in_place,
                include=args.include,
            )
        )
        name = made.metadata.name
        for event in engine.events(name):
            if event.reason == "Workspace":
                print(f"{'warning: ' if event.type == 'Warning' else ''}{event.message}", file=sys.stderr)
        print(f"{name} submitted to queue {made.spec.job_queue} on {engine.where}", flush=True)
        if following:
            code = follow(engine, name, args.program, Paint(colours_wanted(args.color)))
            print("\n".join(f"{what:<8} {place}" for what, place in engine.places(name).items()))
        print(next_line(args, f"{'status' if following else 'logs -f'} {name}"))
    return code


def _is_file(words: list[str]) -> bool:
    return len(words) == 1 and Path(words[0]).suffix in (".yaml", ".yml", ".json")
