"""`secret`: tokens for jobs, without a value on a command line, a screen or in a file of manifests."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.cli import exit_codes

if TYPE_CHECKING:
    from orchestra.cluster.secrets import Secrets

EPILOG = """\
A job uses one by name: `secrets: [{{name: hf-secrets}}]` gives all of its keys as variables, `{{name, key, env}}` one.
Values are read from a file or from standard input, and never shown.

examples:
  {program} secret create hf-secrets --from-env-file .env
  {program} secret create s3 --from-env-file - < .env
  {program} secret list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_cluster_arguments

    does = parser.add_subparsers(dest="does", metavar="create|list|delete", required=True)
    create = does.add_parser("create", help="create or replace one")
    create.add_argument("name", metavar="NAME", help="its name")
    create.add_argument("--from-env-file", required=True, metavar="FILE", help="lines of NAME=value; - reads them")
    create.add_argument("--replace", action="store_true", help="replace one that is there")
    listing = does.add_parser("list", help="names and keys, no values")
    delete = does.add_parser("delete", help="delete one that this command created")
    delete.add_argument("name", metavar="NAME", help="its name")
    for one in (create, listing, delete):
        add_cluster_arguments(one)


def run(args: argparse.Namespace) -> int:
    """0 when it is done."""
    from orchestra.cli.engines import cluster_engine
    from orchestra.cluster.secrets import Secrets

    args.local = False
    secrets = Secrets(cluster_engine(args))
    match args.does:
        case "create":
            return _create(args, secrets)
        case "list":
            return _list(secrets)
        case _:
            secrets.delete(args.name)
            print(f"secret {args.name} deleted", file=sys.stderr)
            return exit_codes.OK


def _create(args: argparse.Namespace, secrets: Secrets) -> int:
    from orchestra.cli.env_file import is_in_git, parse_env, read_env_file

    if args.from_env_file == "-":
        values = parse_env(sys.stdin.read(), "standard input")
    else:
        path = Path(args.from_env_file)
        values = read_env_file(path)
        if is_in_git(path):
            mend = f"git rm --cached {path}, add it to .gitignore, and change the secrets: history keeps them"
            print(f"warning: git keeps {path}, so whoever has the repository has its secrets; {mend}", file=sys.stderr)
    secrets.create(args.name, values, replace=args.replace)
    print(f"secret {args.name}: {', '.join(sorted(values))}", file=sys.stderr)
    print(f"use it in a job: secrets: [{{name: {args.name}}}]", file=sys.stderr)
    return exit_codes.OK


def _list(secrets: Secrets) -> int:
    from orchestra.cli.terminal import table

    rows = [[name, ", ".join(keys)] for name, keys in secrets.names()]
    print(table(rows, ["NAME", "KEYS"]))
    return exit_codes.OK
