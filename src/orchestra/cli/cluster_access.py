"""How a command reaches a cluster."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.api.engine import EngineError

if TYPE_CHECKING:
    from orchestra.kube.config import Access


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Which cluster is meant, as kubectl asks for it."""
    parser.add_argument("--kubeconfig", help="kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
    parser.add_argument("--context", help="context of the kubeconfig (default: its current one)")


def require_cluster_packages() -> None:
    """Says what to install where the packages that talk to a cluster are missing."""
    if importlib.util.find_spec("aiohttp") is None:
        raise EngineError("this needs packages that are not installed: pip install 'orchestra[cluster]'")


def cluster_access(args: argparse.Namespace) -> Access:
    """The API server that a command line means. EngineError, in words, when there is none."""
    require_cluster_packages()
    from orchestra.kube.config import ConfigError, find_access, load_kubeconfig

    try:
        if args.kubeconfig:
            return load_kubeconfig(Path(args.kubeconfig), context=args.context)
        return find_access(context=args.context)
    except ConfigError as error:
        raise EngineError(str(error)) from error


@contextlib.contextmanager
def told_in_words() -> Iterator[None]:
    """Turns what the API server or the network refuse into what a user is told."""
    from orchestra.kube.errors import KubeError

    try:
        yield
    except KubeError as error:
        raise EngineError(str(error)) from error
