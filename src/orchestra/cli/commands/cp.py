"""`cp`: a file or folder into all workers at once, or out of the one where a rank runs."""

from __future__ import annotations

import argparse
import sys

from orchestra.cli import exit_codes

EPILOG = """\
A path in the workers begins with a colon. Copies go to every worker unless --rank or --node names one; what comes
back comes from rank 0's. Needs tar in the image, as kubectl cp does.

examples:
  {program} cp my-job train.py :/app/train.py        # then: {program} restart my-job
  {program} cp my-job --rank 8 :/tmp/trace.json .
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.pods import add_pod_arguments

    add_pod_arguments(parser, required=True)
    parser.add_argument("source", help="what to copy")
    parser.add_argument("target", help="where to")


def run(args: argparse.Namespace) -> int:
    """0 when every copy worked, 1 otherwise."""
    from orchestra.api.engine import EngineError
    from orchestra.cli.kubectl import kubectl_words
    from orchestra.cli.pods import choose_pod, choose_pods

    inward = args.target.startswith(":")
    if inward == args.source.startswith(":"):
        raise EngineError("one of the two is a path in the workers and begins with a colon, such as :/app/train.py")
    if not inward:
        engine, pod = choose_pod(args)
        words = kubectl_words(args, engine.namespace)
        made = [[*words, "cp", "-c", pod.trainer, f"{pod.metadata.name}{args.source}", args.target]]
        names = [pod.metadata.name]
    else:
        engine, pods = choose_pods(args)
        words = kubectl_words(args, engine.namespace)
        made = [[*words, "cp", "-c", pod.trainer, args.source, f"{pod.metadata.name}{args.target}"] for pod in pods]
        names = [pod.metadata.name for pod in pods]
    failed = _all(names, made)
    if failed:
        print(f"not copied to or from: {', '.join(failed)}", file=sys.stderr)
        return exit_codes.ERROR
    print(f"copied: {', '.join(names)}", file=sys.stderr)
    return exit_codes.OK


def _all(names: list[str], commands: list[list[str]]) -> list[str]:
    """Runs all at once; names those that failed, with what kubectl said."""
    import subprocess

    started = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
               for words in commands]  # fmt: skip
    failed = []
    for name, process in zip(names, started, strict=True):
        _, said = process.communicate()
        if process.returncode:
            print(f"{name}: {said.strip()}", file=sys.stderr)
            failed.append(name)
    return failed
