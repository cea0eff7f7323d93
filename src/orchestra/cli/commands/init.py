"""`init`: the job file for a command, to keep and to edit."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from orchestra.cli import exit_codes

EPILOG = """\
The file holds the built-in queue too, so it runs here as it is and shows what to change for a cluster.

examples:
  {program} init "python train.py" > job.yaml
  {program} init "python train.py" -o job.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("what", nargs="+", metavar="COMMAND", help="the command to run")
    parser.add_argument("--name", help="name of the job (default: from the command)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there; an existing file is not overwritten")


def run(args: argparse.Namespace) -> int:
    """Writes the file."""
    import yaml

    from orchestra.api.base import to_builtins
    from orchestra.cli.submissions import name_from
    from orchestra.local.machine import Machine

    name = args.name or name_from(args.what)
    queue = to_builtins(Machine.here().queue())
    queue["spec"].pop("resources", None)  # quotas of a cluster: nothing to see here
    head = {"apiVersion": "torchrun.ai/v1alpha1"}
    command = args.what[0] if len(args.what) == 1 else args.what
    gpus = queue["spec"]["nodeResources"].get("gpus", 0)
    size = {"numGPUs": gpus} if gpus else {"numNodes": 1, "procsPerNode": 1}
    documents = [
        {**head, "kind": "TorchrunQueue", "metadata": queue["metadata"], "spec": queue["spec"]},
        {
            **head,
            "kind": "TorchrunJob",
            "metadata": {"name": name},
            "spec": {"jobQueue": "local", **size, "command": command, "maxRestarts": 3},
        },
    ]
    text = f"# {args.program} run -f {args.output or 'job.yaml'}\n" + yaml.safe_dump_all(documents, sort_keys=False)
    if args.output is None:
        print(text, end="")
        return exit_codes.OK
    try:
        with Path(args.output).open("x") as file:
            file.write(text)
    except FileExistsError:
        print(f"{args.output} exists; remove it or give another name", file=sys.stderr)
        return exit_codes.ERROR
    print(f"wrote {args.output}\nnext: {args.program} run -f {args.output}")
    return exit_codes.OK
