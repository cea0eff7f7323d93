"""Which engine a command means, and which job."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from orchestra.api.engine import Engine
    from orchestra.api.job import TorchrunJob
    from orchestra.cluster.engine import KubernetesEngine
    from orchestra.cluster.rendered import RenderedEngine

K = TypeVar("K", bound="KubernetesEngine")
_PROBE_SECONDS = 5.0


def add_engine_arguments(parser: argparse.ArgumentParser, *, lists: bool = False) -> None:
    """Where jobs run; for a list also which."""
    parser.add_argument("--local", action="store_true", help="this machine (the default without a kubeconfig)")
    add_cluster_arguments(parser)
    if lists:
        parser.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces of the cluster")
        parser.add_argument("-l", "--selector", default="", help="only those with these labels, such as team=a,gpu!=b")


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Which cluster, as whom, and where in it."""
    parser.add_argument("-n", "--namespace", help="namespace in the cluster (default: the context's)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig to use")


def add_job_argument(parser: argparse.ArgumentParser) -> None:
    """`JOB`, by default the newest of this folder."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="name of the job (default: the newest of this folder)")
    add_engine_arguments(parser)


def choose_engine(args: argparse.Namespace) -> Engine:
    """The engine that a command line means, for verbs that are not about one job."""
    from orchestra.local.engine import LocalEngine

    return cluster_engine(args) if means_cluster(args) else LocalEngine()


def means_cluster(args: argparse.Namespace) -> bool:
    """Whether a command line means a cluster: it says so, or there is a kubeconfig and it does not say otherwise."""
    return not args.local and (_says_cluster(args) or has_kubeconfig())


def choose_engine_to_submit(args: argparse.Namespace) -> Engine:
    """The same; `run` is always this machine."""
    if args.verb == "run":
        if _says_cluster(args):
            from orchestra.api.engine import EngineError

            raise EngineError(f"run is for this machine; {args.program} submit goes to the cluster")
        args.local = True
    return choose_engine(args)


def choose(args: argparse.Namespace, job: str | None = None) -> tuple[Engine, str]:
    """The engine and the job that a command line means: where this folder's newest job of that name runs."""
    wanted = job or getattr(args, "job", None) or ""
    engine, found = _where_it_runs(args, wanted)
    if not found:
        from orchestra.api.engine import NotFound

        raise NotFound(f"no job was submitted from this folder to {engine.where}; {args.program} list shows all")
    return _or_rendered(args, engine, found), found


def _or_rendered(args: argparse.Namespace, engine: Engine, name: str) -> Engine:
    """The engine for rendered jobs, where the cluster has one of that name and no TorchrunJob."""
    if engine.name == "local":
        return engine
    from orchestra.api.engine import EngineError

    try:
        engine.get(name)
    except EngineError:  # no such job; or a cluster that does not even know the kind
        rendered = rendered_engine(args)
        return rendered if rendered.holds(name) else engine
    return engine


def _where_it_runs(args: argparse.Namespace, wanted: str) -> tuple[Engine, str]:
    from orchestra.api.engine import EngineError
    from orchestra.cluster.kinds import age_order

    here = Path.cwd()
    default = choose_engine(args)
    if args.local or _says_cluster(args) or default.name == "local":
        return default, wanted or default.newest(here) or ""
    local, on_machine = _on_this_machine(wanted, here)
    cluster = cluster_engine(args)
    try:
        on_cluster = cluster.from_folder(wanted, here, _PROBE_SECONDS)
    except EngineError as error:
        if local is None or on_machine is None:
            raise
        print(f"{error}\n{on_machine.metadata.name} is on this machine", file=sys.stderr)
        return local, on_machine.metadata.name
    newest = max((job for job in (on_machine, on_cluster) if job is not None), key=age_order, default=None)
    engine: Engine = local if local is not None and newest is not None and newest is on_machine else cluster
    name = newest.metadata.name if newest is not None else wanted
    if name:
        other = " (another folder has one on this machine: --local)" if _elsewhere(local, newest, wanted) else ""
        print(f"{name}: {engine.where}{other}", file=sys.stderr)
    return engine, name


def _elsewhere(local: Engine | None, newest: TorchrunJob | None, wanted: str) -> bool:
    """Whether the job may well be meant that another folder submitted to this machine."""
    return local is not None and newest is None and any(job.metadata.name == wanted for job in local.jobs())


def _on_this_machine(wanted: str, folder: Path) -> tuple[Engine | None, TorchrunJob | None]:
    """The embedded engine, if it was ever used, and this folder's newest job of that name there."""
    from orchestra.local.engine import LocalEngine
    from orchestra.local.home import Home

    if not Home.of_user().database.exists():
        return None, None
    engine = LocalEngine()
    newest = engine.newest(folder, wanted)
    return engine, engine.get(newest) if newest is not None else None


def _says_cluster(args: argparse.Namespace) -> bool:
    return bool(args.namespace or args.context or args.kubeconfig or getattr(args, "all_namespaces", False))


def has_kubeconfig(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether kubectl would find a kubeconfig."""
    named = [part for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    return any(Path(path).expanduser().is_file() for path in named or ["~/.kube/config"])


def cluster_engine(args: argparse.Namespace) -> KubernetesEngine:
    """The cluster that a command line means; connections end with the program."""
    from orchestra.api.engine import EngineError

    try:
        from orchestra.cluster.engine import KubernetesEngine
    except ImportError as error:
        raise EngineError(f"talking to a cluster needs {error.name}: pip install 'orchestra[cluster]'") from error
    return _connected(args, KubernetesEngine)


def rendered_engine(args: argparse.Namespace) -> RenderedEngine:
    """The same cluster, for rendered jobs."""
    from orchestra.cluster.rendered import RenderedEngine

    return _connected(args, RenderedEngine)


def _connected(args: argparse.Namespace, kind: type[K]) -> K:
    from orchestra.api.engine import EngineError

    try:
        from orchestra.kube.config import ConfigError, context_name, find_access
    except ImportError as error:
        raise EngineError(f"talking to a cluster needs {error.name}: pip install 'orchestra[cluster]'") from error
    environment = dict(os.environ) | ({"KUBECONFIG": args.kubeconfig} if args.kubeconfig else {})
    try:
        access = find_access(context=args.context, environment=environment)
        context = args.context or context_name(environment)
    except ConfigError as error:
        raise EngineError(f"{error}; --local is this machine") from error
    engine = kind(
        access,
        namespace=args.namespace,
        context=context,
        everywhere=getattr(args, "all_namespaces", False),
        labels=getattr(args, "selector", ""),
        on_warning=lambda text: print(f"warning: {text}", file=sys.stderr),
        on_note=lambda text: print(text, file=sys.stderr),
    )
    atexit.register(engine.close)
    return engine


def next_line(args: argparse.Namespace, words: str) -> str:
    """One useful next command, with the flags that said where."""
    flags = [("-n", args.namespace), ("--context", args.context), ("--kubeconfig", args.kubeconfig)]
    given = "".join(f" {flag} {value}" for flag, value in flags if value)
    local = " --local" if args.local and args.verb != "run" else ""
    return f"next: {args.program} {words}{local}{given}"


def listed(args: argparse.Namespace, engine: Engine) -> list[TorchrunJob]:
    """The jobs that a list shows. A cluster has chosen by labels already."""
    from orchestra.cli.selectors import matches

    if engine.name == "local":
        return [job for job in engine.jobs() if matches(args.selector, job.metadata.labels)]
    return _with_rendered(args, engine)


def _with_rendered(args: argparse.Namespace, engine: Engine) -> list[TorchrunJob]:
    from orchestra.api.engine import EngineError
    from orchestra.cluster.kinds import age_order

    rendered = rendered_engine(args).jobs()
    try:
        jobs = engine.jobs()
    except EngineError:  # a cluster without our definitions has rendered jobs alone
        if not rendered:
            raise
        jobs = []
    return sorted([*jobs, *rendered], key=age_order)
