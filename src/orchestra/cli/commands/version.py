"""`version`: which Orchestra this is."""

from __future__ import annotations

import argparse

from orchestra import __version__
from orchestra.cli import exit_codes

EPILOG = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="how to print it")


def run(args: argparse.Namespace) -> int:
    """Prints the version."""
    if args.output == "json":
        import json

        print(json.dumps({"version": __version__, "apiVersion": "torchrun.ai/v1alpha1"}))
    else:
        print(f"{args.program} {__version__} (API torchrun.ai/v1alpha1)")
    return exit_codes.OK
