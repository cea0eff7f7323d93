"""Which pods a command line means: all of a job's, the one where a rank runs, or the one of a node."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from orchestra.api.engine import EngineError

if TYPE_CHECKING:
    from orchestra.cluster.engine import KubernetesEngine
    from orchestra.cluster.kinds import Pod


def add_pod_arguments(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """`JOB --rank N` or `--node N`."""
    word = {} if required else {"nargs": "?"}
    parser.add_argument("job", metavar="JOB", help="name of the job", **word)  # type: ignore[arg-type]
    add_pod_choice(parser)


def add_pod_choice(parser: argparse.ArgumentParser) -> None:
    """`--rank N` or `--node N`."""
    from orchestra.cli.engines import add_engine_arguments

    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, metavar="N", help="the pod where this rank runs (default: rank 0's)")
    which.add_argument("--node", type=int, metavar="N", help="the job's N-th pod")
    add_engine_arguments(parser)


def choose_pod(args: argparse.Namespace) -> tuple[KubernetesEngine, Pod]:
    """One running pod."""
    engine, pods = _running(args)
    if args.node is not None:
        return engine, _of_node(pods, args.node)
    if len(pods) == 1:
        return engine, pods[0]
    return engine, engine.pod_of_rank(pods, args.rank or 0)


def choose_pods(args: argparse.Namespace) -> tuple[KubernetesEngine, list[Pod]]:
    """All running pods, unless one is named."""
    if args.rank is not None or args.node is not None:
        engine, pod = choose_pod(args)
        return engine, [pod]
    return _running(args)


def _running(args: argparse.Namespace) -> tuple[KubernetesEngine, list[Pod]]:
    from orchestra.cli.engines import choose
    from orchestra.cluster.engine import KubernetesEngine

    engine, name = choose(args)
    if not isinstance(engine, KubernetesEngine):
        raise EngineError(f"{name} runs on this machine: there are no pods; status shows its folder and process ids")
    pods = [pod for pod in engine.workers(name) if pod.status.phase == "Running"]
    if not pods:
        raise EngineError(f"no pod of {name} is running; {args.program} why {name} tells the reason")
    return engine, pods


def _of_node(pods: list[Pod], node: int) -> Pod:
    if not 0 <= node < len(pods):
        raise EngineError(f"there is no node {node}: {len(pods)} pods are running, counted from 0")
    return pods[node]
