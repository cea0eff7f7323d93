"""What kubectl does best (terminals, tunnels, copies) is left to it: we only find the right pod."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence

from orchestra.api.engine import EngineError


def kubectl_words(args: argparse.Namespace, namespace: str) -> list[str]:
    """Kubectl with the same cluster, user and namespace as this command."""
    program = shutil.which("kubectl")
    if program is None:
        raise EngineError(f"{args.verb} needs kubectl on the PATH")
    words = [program]
    if args.kubeconfig:
        words += ["--kubeconfig", args.kubeconfig]
    if args.context:
        words += ["--context", args.context]
    return [*words, "--namespace", namespace]


def become(words: Sequence[str]) -> int:
    """Kubectl takes this process's place: its terminal, its signals and its exit code are ours."""
    os.execv(words[0], list(words))  # noqa: S606 -- no shell is wanted
