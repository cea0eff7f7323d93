"""`doctor --job FILE`: the job's own workers, with its own image, size, storage and network, check what it will need.

A job like the user's, whose program is `train/preflight.py` as text: it runs wherever the job would, on any engine.
"""

from __future__ import annotations

import contextlib
import json
import time
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from orchestra.api.doctor import Finding
from orchestra.api.engine import Engine, EngineError, LogQuery, NotFound, Submission
from orchestra.api.job import TorchrunJob
from orchestra.api.queue import TorchrunQueue
from orchestra.api.template import Lifecycle
from orchestra.plan import Plan, plan, status

_MARK = "PREFLIGHT "
_SHM_A_PROCESS = 256 << 20
_SLOW = 1.0


def preflight(
    engine: Engine, job: TorchrunJob, queue: TorchrunQueue | None, *, cpu: bool, seconds: float, patience: float
) -> list[Finding]:
    """Runs it and reads what it found. The job is gone afterwards."""
    known = queue or next((one for one in engine.queues() if one.metadata.name == job.spec.job_queue), None)
    if known is None:
        raise EngineError(f"there is no queue {job.spec.job_queue}; give its file too")
    planned = plan(known, job)
    probe = _probe(job, planned, seconds)
    name = probe.metadata.name
    engine.submit(Submission(job=probe, queue=queue, folder=str(Path.cwd()), cpu=cpu))
    try:
        ended = _wait(engine, name, patience + seconds)
        said = [line.text for line in engine.logs(name, LogQuery())]
        told = next((json.loads(text[len(_MARK) :]) for text in said if text.startswith(_MARK)), None)
        if told is not None:
            return judge(told, planned)
        return _not_run(engine, ended, patience)
    finally:
        with contextlib.suppress(NotFound):
            engine.delete(name)


def _probe(job: TorchrunJob, planned: Plan, seconds: float) -> TorchrunJob:
    text = resources.files("orchestra.train").joinpath("preflight.py").read_text("utf-8")
    folders = [volume.mount_path for volume in planned.volumes if not volume.read_only]
    spec = msgspec.structs.replace(
        job.spec,
        command=["python", "-c", text, f"{seconds:g}", *folders],
        launcher="torchrun",
        elastic=None,
        suspend=False,
        lifecycle=Lifecycle(restart_policy="Never"),
        restart_policy=None,
        max_restarts=None,
    )
    meta = msgspec.structs.replace(job.metadata, name=f"{job.metadata.name[:36]}-preflight")
    return msgspec.structs.replace(job, metadata=meta, spec=spec, status=None)


def _wait(engine: Engine, name: str, seconds: float) -> TorchrunJob:
    end = time.monotonic() + seconds
    while True:
        engine.look()
        job = engine.get(name)
        if status.at_rest(job) or time.monotonic() > end:
            return job
        time.sleep(0.5)


def _not_run(engine: Engine, job: TorchrunJob, patience: float) -> list[Finding]:
    current = status.status_of(job)
    if current.phase == "Failed":
        words = current.failure.message if current.failure else None
        said = status.phase_condition(job)
        return [Finding("workers", "missing", (words or (said.message if said else "they failed")).splitlines()[0])]
    causes = engine.why(job.metadata.name)
    text = causes[0].message if causes else f"it is {current.phase}"
    mend = causes[0].mend if causes else ""
    return [Finding("workers", "missing", f"they did not start within {patience:.0f} s: {text}", mend)]


def judge(told: dict[str, Any], planned: Plan) -> list[Finding]:
    """What the facts mean. Pure."""
    ranks: list[dict[str, Any]] = told["ranks"]
    nodes = {rank["node"]: rank for rank in ranks}.values()
    return [
        _rendezvous(ranks),
        _same("torch", nodes, "use one image for all nodes"),
        *([_same("nccl", nodes, "use one image for all nodes")] if any(one["nccl"] for one in nodes) else []),
        _interface(nodes),
        _shm(nodes),
        *([_gpus(nodes)] if planned.gpus_per_node else []),
        *_storage(nodes),
        *_bandwidth(told),
    ]


def _rendezvous(ranks: list[dict[str, Any]]) -> Finding:
    masters = [rank["master"] for rank in ranks]
    bad = next((one for one in masters if one.get("problem")), None)
    if bad is not None:
        text = f"{bad['name']}:{bad['port']} cannot be reached by every rank: {bad['problem']}"
        return Finding("rendezvous", "missing", text, "look at NetworkPolicies and at the headless Service")
    slowest = max(one["seconds"] for one in masters)
    text = f"{len(ranks)} ranks met; {masters[0]['name']} answers within {slowest * 1000:.0f} ms"
    return Finding("rendezvous", "warning" if slowest > _SLOW else "ok", text)


def _same(what: str, nodes: Any, mend: str) -> Finding:
    versions = sorted({str(node[what]) for node in nodes})
    if len(versions) == 1:
        return Finding(what, "ok", f"{versions[0]} on all nodes")
    return Finding(what, "missing", f"the nodes differ: {', '.join(versions)}", mend)


def _interface(nodes: Any) -> Finding:
    for node in nodes:
        found = node["interface"]
        if not found["there"]:
            text = f"{node['host']} has no {found['asked']}; it has {', '.join(found['known'])}"
            return Finding("interface", "missing", text, "set network.interface in the queue")
    asked = next(iter(nodes))["interface"]["asked"]
    return Finding("interface", "ok", asked or "chosen by the backend")


def _shm(nodes: Any) -> Finding:
    least = min(nodes, key=lambda node: node["shmBytes"])
    text = f"{least['shmBytes'] / 2**20:.0f} MiB for {least['processes']} processes on {least['host']}"
    enough = least["shmBytes"] >= _SHM_A_PROCESS * least["processes"]
    return Finding(
        "shared memory", "ok" if enough else "warning", text, "" if enough else "raise storage.shmSizePerGPU"
    )


def _gpus(nodes: Any) -> Finding:
    short = [f"{node['host']} sees {node['gpus']} of {node['processes']}" for node in nodes
             if node["gpus"] < node["processes"]]  # fmt: skip
    if short:
        return Finding("GPUs", "missing", "; ".join(short), "look at the device plugin and at the image's CUDA")
    return Finding("GPUs", "ok", f"{sum(node['gpus'] for node in nodes)} on {len(list(nodes))} nodes")


def _storage(nodes: Any) -> list[Finding]:
    found = []
    for folder in next(iter(nodes))["folders"]:
        bad = [f"{node['host']}: {node['folders'][folder]}" for node in nodes if node["folders"][folder]]
        text = "; ".join(bad) or "writable on all nodes"
        mend = "look at the claim's access modes and at securityContext.fsGroup" if bad else ""
        found.append(Finding(folder, "missing" if bad else "ok", text, mend))
    return found


def _bandwidth(told: dict[str, Any]) -> list[Finding]:
    measured = told["bandwidth"]
    if not measured:
        return []
    words = [f"{one['bytes'] >> 20} MiB {one['busBytesPerSecond'] / 1e9:.2f} GB/s" for one in measured]
    return [Finding("all-reduce", "ok", f"{told['backend']}: {', '.join(words)} (bus bandwidth)")]
