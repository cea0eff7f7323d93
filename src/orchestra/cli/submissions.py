"""Jobs from a command line: from files with flags laid over, or from a bare command."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from orchestra.api import TorchrunJob, TorchrunQueue
from orchestra.api.base import from_builtins, to_builtins
from orchestra.api.engine import Engine, EngineError
from orchestra.api.load import load
from orchestra.api.problem import Invalid, Problem
from orchestra.api.rules import MAX_JOB_NAME, broken_rules
from orchestra.cli.manifests import report
from orchestra.plan.queues import queue_for

Pair = tuple[TorchrunJob, TorchrunQueue | None]


def from_files(args: argparse.Namespace) -> list[Pair] | None:
    """The jobs of the files, each with its queue if that is among them; None when the files are wrong (and said)."""
    loaded = load([*args.filename, *args.what])
    report(loaded.problems, loaded)
    if loaded.problems:
        return None
    if not loaded.jobs:
        raise EngineError("there is no TorchrunJob in these files")
    queues = [document.object for document in loaded.queues]
    jobs = [_with_flags(document.object, args) for document in loaded.jobs]
    return [(job, queue_for(job, queues)) for job in jobs]


def from_command(args: argparse.Namespace, engine: Engine) -> Pair:
    """A job around a bare command."""
    command: str | list[str] = args.what[0] if len(args.what) == 1 else args.what
    queues = engine.queues()
    spec: dict[str, Any] = {"jobQueue": args.queue or _only_queue(engine, queues), "command": command}
    queue = next((q for q in queues if q.metadata.name == spec["jobQueue"]), None)
    gpus = queue.spec.node_resources.gpus if queue and queue.spec.node_resources else 0
    if gpus and not args.gpus and not args.nodes:
        spec["numGPUs"] = gpus  # all of this machine
    name = args.name or free_name(name_from(args.what), {job.metadata.name for job in engine.jobs()})
    job = from_builtins({"metadata": {"name": name}, "spec": spec}, TorchrunJob)
    return _with_flags(job, args), None


def _only_queue(engine: Engine, queues: list[TorchrunQueue]) -> str:
    """The queue of a command that names none: this machine, or a cluster's only one."""
    if engine.name == "local":
        return "local"
    names = sorted({queue.metadata.name for queue in queues})
    if len(names) != 1:
        known = f"one of {', '.join(names)}" if names else "there is none yet: kubectl apply -f QUEUE.yaml"
        raise EngineError(f"--queue is missing; {known}")
    return names[0]


def _with_flags(job: TorchrunJob, args: argparse.Namespace) -> TorchrunJob:
    """The job with what the command line says laid over it."""
    spec = to_builtins(job.spec)
    given = {"jobQueue": args.queue, "launcher": args.launcher, "maxRestarts": args.max_restarts}
    spec |= {name: value for name, value in given.items() if value is not None}
    if args.gpus is not None:
        spec = _without(spec, "numNodes", "gpusPerNode", "procsPerNode") | {"numGPUs": args.gpus}
    if args.nodes is not None:
        spec = _without(spec, "numGPUs") | {"numNodes": args.nodes}
    if args.procs is not None:
        spec = _without(spec, "numGPUs") | {"procsPerNode": args.procs}
        spec.setdefault("numNodes", 1)
    if args.env:
        spec["env"] = [*spec.get("env", []), *(_variable(word) for word in args.env)]
    name = args.name or job.metadata.name
    made = from_builtins(
        {**to_builtins(job), "metadata": {**to_builtins(job.metadata), "name": name}, "spec": spec}, TorchrunJob
    )
    problems = broken_rules(made)
    if problems:
        raise Invalid(problems)
    return made


def _without(spec: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name not in names}


def _variable(word: str) -> dict[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise Invalid([Problem("--env", f"{word!r} is not NAME=VALUE", "write --env NAME=VALUE")])
    return {"name": name, "value": value}


def name_from(words: list[str]) -> str:
    """A name for a command: its script, else its program. `python examples/train.py --lr 1` is `train`."""
    flat = " ".join(words).split()
    script = next((word for word in flat if word.endswith((".py", ".sh"))), None)
    module = next((flat[i + 1] for i, word in enumerate(flat[:-1]) if word == "-m"), None)
    base = Path(script).stem if script else module.rsplit(".", 1)[-1] if module else Path(flat[0]).name if flat else ""
    cleaned = re.sub(r"[^a-z0-9]+", "-", base.lower()).strip("-")[: MAX_JOB_NAME - 4].strip("-")
    if not cleaned or not cleaned[0].isalpha() or cleaned.endswith(("-sync", "-rdzv")):
        return "job"
    return cleaned


def free_name(base: str, taken: set[str]) -> str:
    """`train`, `train-2`, `train-3`, ..."""
    if base not in taken:
        return base
    return next(name for name in (f"{base}-{number}" for number in range(2, 100000)) if name not in taken)
