"""A plan brought to this machine: addresses, folders, GPUs, and the spec that each node's agent reads."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestra.api import TorchrunJob, TorchrunQueue
from orchestra.api.base import from_builtins, to_builtins
from orchestra.api.problem import Invalid, Problem
from orchestra.local import etcd
from orchestra.local.home import Home, JobFolder
from orchestra.local.machine import Machine
from orchestra.local.store import Record
from orchestra.plan import Plan, Where, plan

_HOST = "127.0.0.1"
_TOO_MANY = 16  # processes a core; beyond it a laptop only swaps


def plan_here(
    record: Record, machine: Machine, restarts_left: int | None, ports: tuple[int, int], *, own_etcd: bool = False
) -> Plan:
    """The plan of the next attempt on this machine. Raises `Invalid` when the machine cannot hold it.

    `own_etcd`: there will be one at the first port, for a job that wants one and names none.
    """
    queue, job = for_cpu(record.queue, record.job) if record.cpu else (record.queue, record.job)
    attempt = (job.status.attempt or 0) + 1 if job.status else 1
    sized = plan(queue, job)
    if _needs_etcd(sized):  # without one, torchrun's own: on one machine there is nothing that etcd would do better
        found = {"rdzvEndpoint": f"{_HOST}:{ports[0]}"} if own_etcd else {"rdzvBackend": "c10d"}
        spec = to_builtins(job.spec)
        job = _with_spec(job, spec | {"distributed": {**spec.get("distributed", {}), **found}})
        sized = plan(queue, job)
    refuse_if_too_large(sized, machine, cpu=record.cpu)
    # deepspeed wants a name of its own for each node; the whole of 127.0.0.0/8 is this machine
    hosts = [f"127.0.0.{index + 1}" for index in range(sized.node_count)]
    where = Where(
        run_id=f"{record.uid}-{attempt}",
        store=f"{_HOST}:{ports[0]}",
        hosts=hosts if sized.launch.launcher == "deepspeed" else [_HOST] * sized.node_count,
        port=ports[1],
        store_on_first_node=True,
        restarts_left=restarts_left,
    )
    return plan(queue, job, where)


def wants_etcd(record: Record) -> bool:
    """Whether the job wants an etcd that nobody named: in a cluster it gets one of its own."""
    queue, job = for_cpu(record.queue, record.job) if record.cpu else (record.queue, record.job)
    return _needs_etcd(plan(queue, job))


def _needs_etcd(sized: Plan) -> bool:
    return sized.rendezvous.backend == "etcd-v2" and sized.rendezvous.own_store


def differences(record: Record, made: Plan, home: Home, environ: Mapping[str, str]) -> list[str]:
    """What is otherwise here than in a cluster, said once so that nobody has to guess."""
    notes = []
    if wants_etcd(record):
        program, missing_for = etcd.usable(environ.get("PATH"))
        own = made.rendezvous.backend == "etcd-v2" and program is not None
        instead = f"{program} runs for this job" if own else f"c10d is used on this machine ({missing_for})"
        notes.append(f"rdzvBackend etcd-v2 without an endpoint: {instead}")
    if record.cpu:
        notes.append("--cpu: the ranks run as CPU processes with gloo")
    for volume in made.volumes:
        if volume.exists and volume.purpose in ("datasets", "models"):
            notes.append(
                f"{volume.mount_path} is {home.volume(volume.claim)} here: put the data of claim {volume.claim} there"
            )
    wanted = [secret.env or secret.key for secret in made.secrets if secret.key] + [e.name for e in made.env_references]
    missing = [name for name in wanted if name and name not in environ]
    if missing:
        notes.append(f"from Secrets in a cluster, from your environment here, and not set: {', '.join(missing)}")
    return notes


def for_cpu(queue: TorchrunQueue, job: TorchrunJob) -> tuple[TorchrunQueue, TorchrunJob]:
    """The same job with every GPU process as a CPU process: same nodes, same ranks, gloo."""
    sized = plan(queue, job)
    if not sized.gpus_per_node:
        return queue, job
    queue_spec, job_spec = to_builtins(queue.spec), to_builtins(job.spec)
    queue_spec["nodeResources"] = {**queue_spec.get("nodeResources", {}), "gpus": 0}
    for name in ("numGPUs", "gpusPerNode"):
        job_spec.pop(name, None)
    job_spec |= {"numNodes": sized.node_count, "procsPerNode": sized.procs_per_node}
    job_spec["distributed"] = {**job_spec.get("distributed", {}), "backend": "gloo"}
    if "nodeResources" in job_spec.get("overrides", {}):
        job_spec["overrides"]["nodeResources"]["gpus"] = 0
    return _with_spec(queue, queue_spec), _with_spec(job, job_spec)


def _with_spec(thing: Any, spec: dict[str, Any]) -> Any:
    return from_builtins({**to_builtins(thing), "spec": spec}, type(thing))


def refuse_if_too_large(sized: Plan, machine: Machine, *, cpu: bool) -> None:
    """More GPUs than there are, or more processes than make sense: said before anything starts."""
    wanted = sized.node_count * sized.gpus_per_node
    if wanted > len(machine.gpus):
        has = f"{len(machine.gpus)} GPU{'s' if len(machine.gpus) != 1 else ''}" if machine.gpus else "no GPU"
        field = "spec.numNodes" if sized.node_count > 1 and wanted // sized.node_count <= len(machine.gpus) else "spec"
        reason = f"the job needs {wanted} GPUs and this machine has {has}"
        raise Invalid([Problem(field, reason, "ask for fewer, or add --cpu to run its ranks as CPU processes")])
    if not sized.gpus_per_node and sized.world_size > _TOO_MANY * machine.cores:
        most = _TOO_MANY * machine.cores
        reason = f"{sized.world_size} processes on {machine.cores} cores would only swap"
        flag = " (with --cpu)" if cpu else ""
        raise Invalid([Problem("spec", f"{reason}{flag}", f"at most {most} processes here")])


def free_ports() -> tuple[int, int]:
    """Two free ports. Somebody may take one before torchrun does; that attempt fails and is retried free."""
    with socket.socket() as one, socket.socket() as other:
        one.bind((_HOST, 0))
        other.bind((_HOST, 0))
        return one.getsockname()[1], other.getsockname()[1]


def launch_spec(
    record: Record,
    made: Plan,
    index: int,
    attempt: int,
    gpus: tuple[int, ...],
    folder: JobFolder,
    home: Home,
    code: str | None = None,
    more_places: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The launch spec (docs/worker-contract.md) of one node. `code` is the tree it runs in; None: the user's folder."""
    node = made.nodes[index]
    code = code or record.folder
    places = {**(more_places or {}), **local_places(made, folder, home, code)}
    cores = len(os.sched_getaffinity(0))
    env = dict(node.env)
    if "OMP_NUM_THREADS" not in {one.name for one in made.template.env}:
        env["OMP_NUM_THREADS"] = str(max(1, cores // made.world_size))
    env |= {"ORCHESTRA_OUTPUT_DIR": str(folder.output), "PATH": path_with_torchrun(env.get("PATH"))}
    if "/data" in places:
        env.setdefault("ORCHESTRA_DATA_DIR", places["/data"])
    env["ORCHESTRA_UID"] = record.uid  # by which anything left over is found again
    if made.gpus_per_node:
        mine = gpus[index * made.gpus_per_node : (index + 1) * made.gpus_per_node]
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, mine))
    elif record.cpu:
        env["CUDA_VISIBLE_DEVICES"] = ""
    program = made.launch.program
    if made.launch.launcher == "torchrun":
        program = with_torchruns_python(program, env["PATH"])
    spec = {
        "version": 1,
        "job": made.job,
        "uid": record.uid,
        "attempt": attempt,
        "node": index,
        "nodes": made.node_count,
        "procsPerNode": made.procs_per_node,
        "launcher": made.launch.launcher,
        "launcherArgv": node.launcher,
        "program": [snapped(moved(word, places), record.folder, code) for word in program],
        "env": {name: moved(value, places) for name, value in env.items()},
        "setup": made.launch.setup,
        "workingDir": moved(made.launch.working_dir, places) if made.launch.working_dir else code,
        "files": made.launch.files,
        "gracePeriodSeconds": made.lifecycle.grace_period_seconds or 0,
        "folder": str(folder.node(index)),
        "listen": f"{_HOST}:0",
        "parentPid": os.getpid(),
    }
    if made.launch.environment is not None:
        spec["environment"] = {**to_builtins(made.launch.environment), "cache": str(home.root / "environments")}
    if made.lifecycle.hang_timeout_seconds:
        spec["hangTimeoutSeconds"] = made.lifecycle.hang_timeout_seconds
    return spec


def snapped(word: str, folder: str, tree: str) -> str:
    """A word that names a file of the user's folder by its full path, as the same file of the snapshot."""
    if folder == tree or not word.startswith(f"{folder}/"):
        return word
    there = Path(tree) / word[len(folder) + 1 :]
    return str(there) if there.exists() and not there.is_symlink() else word


def local_places(made: Plan, folder: JobFolder, home: Home, submitted_from: str) -> dict[str, str]:
    """Where the folders of a pod are on this machine."""
    places = {}
    for volume in made.volumes:
        if volume.purpose == "workspace":
            places[volume.mount_path] = submitted_from
        elif volume.purpose == "checkpoints":
            places[volume.mount_path] = str(folder.output)
        else:
            places[volume.mount_path] = str(home.volume(volume.claim))
    if made.code is not None:
        places[made.code.mount_path] = submitted_from
    return places


def moved(word: str, places: dict[str, str]) -> str:
    """A word with a pod's path replaced by this machine's, as itself or as the value of `--flag=`."""
    flag, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    for mount, here in places.items():
        if value == mount or value.startswith(f"{mount.rstrip('/')}/"):
            return f"{flag}{equals}{here}{value[len(mount.rstrip('/')) :]}"
    return word


def path_with_torchrun(path: str | None) -> str:
    """PATH; where it has no torchrun at all, with the programs beside this interpreter in front."""
    path = path or os.environ.get("PATH", os.defpath)
    if shutil.which("torchrun", path=path):
        return path
    return f"{Path(sys.executable).parent}{os.pathsep}{path}"


def with_torchruns_python(program: list[str], path: str) -> list[str]:
    """A plain `python` is the one that torchrun belongs to: they must share one torch."""
    torchrun = shutil.which("torchrun", path=path)
    if program[0] not in ("python", "python3") or torchrun is None:
        return program
    beside = Path(torchrun).parent / program[0]
    return [str(beside), *program[1:]] if beside.exists() else program
