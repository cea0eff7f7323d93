"""`convert(manifests)`: someone's existing deployment as a TorchrunQueue and a TorchrunJob. Pure."""

from __future__ import annotations

import contextlib
import re
import shlex
from dataclasses import dataclass
from typing import Any

import msgspec

from orchestra.api.base import from_builtins
from orchestra.api.defaults import TEMPLATE_DEFAULTS
from orchestra.api.job import TorchrunJob
from orchestra.api.problem import Invalid, Problem
from orchestra.api.queue import TorchrunQueue
from orchestra.plan.planner import plan
from orchestra.render.convert.commands import read_process
from orchestra.render.convert.launch_line import LaunchLine, read_launch_line
from orchestra.render.convert.our_forms import Process
from orchestra.render.convert.pod_reading import IDENTITY, keep_the_rest, read_env, read_pod, trainer_container
from orchestra.render.convert.reading import Findings, Objects, Raw, take
from orchestra.render.convert.volume_reading import read_volumes
from orchestra.render.convert.workloads import Workload, reader_of
from orchestra.render.labels import GPU_TYPE, LAST_APPLIED, MANAGER, OURS, QUEUE


@dataclass
class Converted:
    """The job, and how sure we are of it."""

    queue: TorchrunQueue
    job: TorchrunJob
    understood: list[str]
    guessed: list[str]
    left_out: list[str]


def workloads_in(manifests: list[Raw]) -> list[Raw]:
    """The objects that can be converted."""
    return [one for one in manifests if reader_of(one) is not None]


def convert(manifests: list[Raw]) -> Converted:
    """One workload and what belongs to it. Raises `Invalid` when there is none, or several."""
    found = workloads_in(manifests)
    if len(found) != 1:
        names = ", ".join(f"{one['kind']} {one.get('metadata', {}).get('name')}" for one in found) or "none"
        reason = f"{names} here, where one PyTorchJob, TrainJob, StatefulSet or Job is expected"
        raise Invalid([Problem("kind", reason, "name the file of one workload")])
    objects = Objects(manifests)
    workload = next(one for one in objects.all if reader_of(one) is not None)
    labels = workload.get("metadata", {}).get("labels", {})
    findings = Findings(ours=labels.get("app.kubernetes.io/managed-by") == MANAGER)
    name = _name(workload, findings)
    queue_name = labels.get(QUEUE, f"{name}-queue")
    _read_metadata(workload, findings)
    read = reader_of(workload)
    assert read is not None  # noqa: S101
    shape = read(workload, objects, findings)
    namespace = workload.get("metadata", {}).get("namespace")
    _read_shape(shape, objects, findings, name)
    _read_gang(objects, findings, name)
    if findings.ours:
        _forget_helpers(objects, name)
        objects.remove(workload)
    findings.left_out += objects.leftovers()
    return _finished(findings, name, queue_name, namespace)


def convert_command(line: str | list[str], name: str = "job") -> Converted:
    """A plain launch line: `torchrun --nproc-per-node=8 train.py`."""
    words = shlex.split(line) if isinstance(line, str) else list(line)
    findings = Findings()
    launch = read_launch_line(words)
    procs = launch.procs or 1
    findings.queue["nodeResources"] = {"gpus": procs}
    findings.guessed.append(f"a node has {procs} GPU{'s' if procs > 1 else ''}: one a process")
    _apply_launch(launch, findings, Workload({}), gpus=procs)
    return _finished(findings, name, f"{name}-queue", None)


def _name(workload: Raw, findings: Findings) -> str:
    given = str(workload.get("metadata", {}).get("name") or workload.get("metadata", {}).get("generateName") or "job")
    name = re.sub(r"[^a-z0-9-]", "-", given.lower()).strip("-")[:48].strip("-") or "job"
    name = name if name[0].isalpha() else f"j-{name}"
    if name.endswith(("-sync", "-rdzv")):
        name = f"{name}-job"
    if name != given:
        findings.guessed.append(f"the name {given} became {name}")
    return name


def _read_metadata(workload: Raw, findings: Findings) -> None:
    labels = {
        name: value for name, value in take(workload, "metadata", "labels", default={}).items() if name not in OURS
    }
    findings.into(findings.job, "labels", labels)
    notes = take(workload, "metadata", "annotations", default={})
    gpu_type = notes.pop(GPU_TYPE, None)
    notes.pop(LAST_APPLIED, None)
    findings.into(findings.job, "annotations", notes)
    findings.into(findings.queue, "nodeResources.gpuType", gpu_type)


def _read_shape(shape: Workload, objects: Objects, findings: Findings, name: str) -> None:
    """Everything inside the pods."""
    pod = shape.pod
    gpu_type = findings.queue.get("nodeResources", {}).get("gpuType")
    container = trainer_container(pod, findings)
    read_pod(pod, container, findings)
    if gpu_type:
        findings.queue.setdefault("nodeResources", {})["gpuType"] = gpu_type
    env = read_env(container, findings)
    if shape.nodes is None:
        shape.nodes = int(env.get("NNODES", "1")) if env.get("NNODES", "1").isdigit() else 1
    process = read_process(pod, container, env, objects, findings)
    env.update(process.env)
    _move_folders(process)
    launch = (
        read_launch_line(process.words) if process.words and process.launcher != "none" else LaunchLine(process.words)
    )
    _read_process(process, findings)
    gpus = findings.queue.get("nodeResources", {}).get("gpus", 0)
    procs = _apply_launch(launch, findings, shape, gpus, env)
    most = findings.job.get("elastic", {}).get("maxNodes") or shape.nodes
    read_volumes(pod, container, objects, findings, name, gpus or procs, most)
    if findings.ours:
        _drop_uploader(pod)
    keep_the_rest(pod, container, findings)
    _read_literals(env, findings, name)


def _move_folders(process: Process) -> None:
    """A foreign script's own folders become those that Orchestra syncs."""
    for what, ours in (("data", "/data"), ("output", "/out")):
        theirs = process.folders.get(what)
        if theirs is None or theirs == ours:
            continue
        process.guessed.append(f"sync.{what} uses {ours}, not {theirs}: the command's arguments are changed with it")
        process.words = [
            re.sub(rf"^(--?[\w-]+=)?{re.escape(theirs)}(?=/|$)", rf"\g<1>{ours}", word) for word in process.words
        ]


def _drop_uploader(pod: Raw) -> None:
    sidecars = [one for one in take(pod, "spec", "initContainers", default=[]) if one.get("name") != "upload"]
    if sidecars:
        pod["spec"]["initContainers"] = sidecars


def _read_process(process: Process, findings: Findings) -> None:
    job = findings.job
    findings.guessed += process.guessed
    findings.left_out += process.left_out
    if process.launcher == "none":
        job["launcher"] = "none"
    for name, value in (
        ("setupCommand", process.setup),
        ("environment", process.environment),
        ("workspace", process.workspace),
        ("sync", {key: one for key, one in process.sync.items() if one}),
    ):
        findings.into(job, name, value)
    if process.sync.get("interval") == 600:
        del job["sync"]["interval"]
    if process.working_dir and "workingDir" not in job:
        job["workingDir"] = process.working_dir
    if process.max_restarts is not None:
        findings.queue.setdefault("lifecycle", {})["maxRestarts"] = process.max_restarts
    if process.hang_timeout is not None:
        findings.queue.setdefault("lifecycle", {})["hangTimeoutSeconds"] = process.hang_timeout


def _apply_launch(
    launch: LaunchLine, findings: Findings, shape: Workload, gpus: int, env: dict[str, str] | None = None
) -> int:
    """Size, rendezvous and command from the launch line. Returns the processes a node."""
    job, env = findings.job, env or {}
    if launch.problem:
        findings.guessed.append(f"the command is kept as it is: {launch.problem}")
    nodes = _nodes(launch, findings, shape)
    job["numNodes"] = nodes
    procs = launch.procs or shape.procs
    if procs is None and env.get("NPROC_PER_NODE", "").isdigit():
        procs = int(env["NPROC_PER_NODE"])
    if procs is not None and procs != (gpus or 1):
        job["procsPerNode"] = procs
        if gpus and procs > gpus:
            findings.guessed.append(f"{procs} processes on {gpus} GPUs: one a GPU is used")
            del job["procsPerNode"]
            procs = gpus
    if launch.max_restarts is not None:
        findings.queue.setdefault("lifecycle", {})["maxRestarts"] = launch.max_restarts
    _rendezvous(launch, findings, shape, env)
    job["command"] = launch.words or ["true"]
    if not launch.words:
        findings.guessed.append("the pod names no command: the image's own is not known here, write it")
    if launch.dropped:
        findings.understood.append(f"flags that are filled in again: {', '.join(launch.dropped)}")
    findings.understood.append(f"command: {shlex.join(job['command'])}")
    return procs or gpus or 1


def _nodes(launch: LaunchLine, findings: Findings, shape: Workload) -> int:
    said = launch.nodes or ""
    if ":" in said and "elastic" not in findings.job:
        low, _, high = said.partition(":")
        findings.job["elastic"] = {"minNodes": int(low), "maxNodes": int(high)}
        return shape.nodes or int(low)
    if said.isdigit() and shape.nodes not in (None, int(said)):
        findings.guessed.append(f"--nnodes={said}, but there are {shape.nodes} pods: the number of pods is used")
    return shape.nodes or (int(said) if said.isdigit() else 1)


def _rendezvous(launch: LaunchLine, findings: Findings, shape: Workload, env: dict[str, str]) -> None:
    job = findings.job
    # A command that calls torchrun itself finds the options in these variables.
    backend = launch.backend or env.get("PET_RDZV_BACKEND")
    if backend in ("etcd-v2", "static"):
        findings.into(job, "distributed.rdzvBackend", backend)
    endpoint = (
        (launch.endpoint or env.get("PET_RDZV_ENDPOINT", ""))
        .replace("$MASTER_ADDR", env.get("MASTER_ADDR", ""))
        .replace("${MASTER_ADDR}", "")
    )
    host, _, port = endpoint.partition(":")
    mine = _is_own(host, (*shape.services, env.get("MASTER_ADDR", "")))
    if backend == "etcd-v2" and host.endswith("-rdzv") and findings.ours:
        mine, port = True, ""
    if endpoint and not mine:
        findings.into(job, "distributed.rdzvEndpoint", endpoint)
        return
    number = launch.port or (int(port) if port.isdigit() else None) or _digits(env.get("MASTER_PORT"))
    if number is not None:
        findings.into(job, "distributed.port", number)


def _is_own(host: str, names: tuple[str, ...]) -> bool:
    """Whether an address leads to the job itself: to its Service, its pod 0, or this pod."""
    if not host or host.startswith(("$", "localhost", "127.")):
        return True
    return any(
        host == name or host.startswith((f"{name}.", f"{name}-0")) or host.endswith(f".{name}")
        for name in names
        if name
    )


def _digits(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _read_literals(env: dict[str, str], findings: Findings, name: str) -> None:
    """Literal variables, less those that the planner gives the same value anyway."""
    job = findings.job
    if env.get("NCCL_SOCKET_IFNAME") and env.get("NCCL_SOCKET_IFNAME") == env.get("GLOO_SOCKET_IFNAME"):
        findings.into(findings.queue, "network.interface", env["NCCL_SOCKET_IFNAME"])
    backend = env.get("ORCHESTRA_BACKEND")
    if backend and backend != ("nccl" if findings.queue.get("nodeResources", {}).get("gpus") else "gloo"):
        findings.into(job, "distributed.backend", backend)
    given: dict[str, str] = {}
    with contextlib.suppress(Invalid, msgspec.ValidationError):  # said when it is finished
        given = plan(*_objects(findings, name, "queue", None)).nodes[0].env
    for variable, value in env.items():
        if variable in IDENTITY or variable.startswith("PET_"):
            continue
        literal = value.replace("$$(", "$(") if findings.ours else value
        if given.get(variable) != literal:
            job.setdefault("env", []).append({"name": variable, "value": literal})


def _read_gang(objects: Objects, findings: Findings, name: str) -> None:
    """How long the gang of a PodGroup waits."""
    group = objects.named("PodGroup", name)
    if group is not None:
        findings.into(findings.queue, "lifecycle.gangTimeoutSeconds", take(group, "spec", "scheduleTimeoutSeconds"))


def _forget_helpers(objects: Objects, name: str) -> None:
    """What `render` writes beside the workload."""
    for kind in ("ConfigMap", "Service", "Deployment", "PodGroup", "TrainingRuntime"):
        for one in [one for one in objects.all if one.get("kind") == kind]:
            if (
                str(one["metadata"]["name"]).startswith((f"{name}-", "orchestra-agent-"))
                or one["metadata"]["name"] == name
            ):
                objects.remove(one)


def _objects(findings: Findings, name: str, queue: str, namespace: str | None) -> tuple[TorchrunQueue, TorchrunJob]:
    place: dict[str, Any] = {"namespace": namespace} if namespace else {}
    job = {"jobQueue": queue, **findings.job}
    return (
        from_builtins({"metadata": {"name": queue, **place}, "spec": findings.queue}, TorchrunQueue),
        from_builtins({"metadata": {"name": name, **place}, "spec": job}, TorchrunJob),
    )


def _drop_defaults(findings: Findings) -> None:
    """What everybody gets anyway only makes a file longer."""
    for which, block, name in (
        (findings.job, "distributed", "port"),
        (findings.queue, "lifecycle", "maxRestarts"),
        (findings.queue, "lifecycle", "gracePeriodSeconds"),
        (findings.queue, "lifecycle", "gangTimeoutSeconds"),
    ):
        given = which.get(block, {})
        if given.get(name) == TEMPLATE_DEFAULTS[f"{block}.{name}"]:
            del given[name]
            if not given:
                del which[block]
    workspace = findings.queue.get("storage", {}).get("workspace")
    if workspace and findings.job.get("workingDir") == workspace.get("mountPath", "/app"):
        del findings.job["workingDir"]
    if findings.job.get("sync", {}).get("code") and findings.job.get("workingDir") == "/app":
        del findings.job["workingDir"]  # where such code is anyway


def _finished(findings: Findings, name: str, queue_name: str, namespace: str | None) -> Converted:
    _drop_defaults(findings)
    try:
        queue, job = _objects(findings, name, queue_name, namespace)
    except msgspec.ValidationError as error:
        raise Invalid([Problem("", f"cannot be said in our words: {error}", "mend the manifest")]) from error
    if queue.spec.service_account_name or queue.spec.image:
        findings.understood.insert(0, f"image: {queue.spec.image}")
    size = f"{job.spec.num_nodes} node{'s' if job.spec.num_nodes != 1 else ''}"
    findings.understood.insert(0, f"size: {size}")
    return Converted(queue, job, findings.understood, findings.guessed, findings.left_out)
