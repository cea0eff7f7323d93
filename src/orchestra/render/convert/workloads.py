"""The foreign kinds: how large they are and when they end; their pods are all alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestra.api.problem import Invalid, Problem
from orchestra.plan.merge import merge
from orchestra.render.convert.reading import Findings, Objects, Raw, leaves, take

_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


@dataclass
class Workload:
    """A foreign job, as far as its kind knows."""

    pod: Raw
    nodes: int | None = None
    procs: int | None = None
    services: tuple[str, ...] = ()
    """Names that may stand for the job's own addresses."""


def read_stateful_set(one: Raw, objects: Objects, findings: Findings) -> Workload:
    """A StatefulSet and its headless Service."""
    spec = one["spec"]
    replicas = take(spec, "replicas", default=1)
    if replicas == 0:
        findings.job["suspend"] = True
    service = take(spec, "serviceName")
    for name in ("podManagementPolicy", "updateStrategy", "selector", "revisionHistoryLimit", "minReadySeconds"):
        value = take(spec, name)
        if value is not None and not findings.ours and name not in ("selector", "podManagementPolicy"):
            findings.left_out.append(f"StatefulSet: spec.{name}")
    _read_service(objects, service, findings)
    return Workload(take(spec, "template", default={}), replicas or None, services=(str(service),))


def _read_service(objects: Objects, name: str | None, findings: Findings) -> None:
    """A headless Service gives names; Orchestra makes its own. Its port is the rendezvous'."""
    service = objects.named("Service", name)
    if service is None:
        return
    ports = service.get("spec", {}).get("ports", [])
    if len(ports) == 1:
        findings.into(findings.job, "distributed.port", ports[0].get("port"))
    elif ports:
        findings.left_out.append(f"Service {name}: spec.ports")
    if service.get("spec", {}).get("clusterIP") != "None":
        findings.guessed.append(f"Service {name} is not headless; the job gets a headless one of its own name")
    findings.understood.append(f"Service {name}: the job gets one of its own")
    objects.remove(service)


def read_batch_job(one: Raw, objects: Objects, findings: Findings) -> Workload:
    """A batch Job, Indexed or of one pod."""
    spec = one["spec"]
    completions, parallelism = take(spec, "completions"), take(spec, "parallelism")
    nodes = completions or parallelism or 1
    if parallelism is not None and completions is not None and parallelism != completions:
        findings.guessed.append(f"{completions} completions, {parallelism} at a time: all nodes train together")
    take(spec, "completionMode")
    limit = take(spec, "backoffLimit")
    if limit is not None:
        findings.into(findings.queue, "lifecycle.maxRestarts", limit // nodes if findings.ours else limit)
    _end_of_life(spec, findings)
    pod: Raw = take(spec, "template", default={})
    for name in ("selector", "manualSelector"):  # the server's own
        take(spec, name)
    if findings.ours:
        take(spec, "podFailurePolicy")
    subdomain = pod.get("spec", {}).get("subdomain")
    _read_service(objects, subdomain, findings)
    return Workload(pod, nodes, services=(str(subdomain),) if subdomain else ())


def _end_of_life(spec: Raw, findings: Findings) -> None:
    for name in ("ttlSecondsAfterFinished", "activeDeadlineSeconds"):
        value = take(spec, name)
        if value is not None:
            findings.queue.setdefault("lifecycle", {})[name] = value
    if take(spec, "suspend"):
        findings.job["suspend"] = True


def read_pytorch_job(one: Raw, _: Objects, findings: Findings) -> Workload:
    """Kubeflow v1: a master and workers."""
    spec, name = one["spec"], str(one["metadata"]["name"])
    policy = spec.get("runPolicy", {})
    limit = take(policy, "backoffLimit")
    if limit is not None:
        findings.into(findings.queue, "lifecycle.maxRestarts", limit)
    _end_of_life(policy, findings)
    if take(policy, "schedulingPolicy", "minAvailable") is not None:
        findings.into(findings.queue, "scheduling.gang", "coscheduling")
    if findings.ours or policy.get("cleanPodPolicy") == "None":
        take(policy, "cleanPodPolicy")
    procs = str(take(spec, "nprocPerNode", default=""))
    replicas: Raw = take(spec, "pytorchReplicaSpecs", default={})
    elastic = take(spec, "elasticPolicy")
    pod, nodes = _replicas(replicas, "pytorchReplicaSpecs", ("Master", "Worker"), findings)
    if elastic:
        procs = procs or str(elastic.get("nProcPerNode", ""))
        _read_elastic(elastic, name, findings)
    elif not procs and not findings.ours:
        procs = "1"
        findings.guessed.append("one process a pod: the job says no nprocPerNode")
    own = [f"{name}-{role}-{index}" for role in ("master", "worker") for index in range(nodes)]
    return Workload(pod, nodes, int(procs) if procs.isdigit() else None, tuple(own))


def _replicas(replicas: Raw, field: str, known: tuple[str, ...], findings: Findings) -> tuple[Raw, int]:
    """The pod of the first role and the number of all pods."""
    roles = [role for role in known if role in replicas]
    if not roles:
        raise Invalid([Problem(f"spec.{field}", "nobody trains here", f"give it a {' and a '.join(known)}")])
    nodes = sum(int(replicas[role].get("replicas", 1)) for role in roles)
    first: Raw = replicas[roles[0]].get("template", {})
    findings.left_out += [f"{field}.{role}" for role in replicas if role not in known]
    for role in roles[1:]:
        other = replicas[role].get("template", {})
        differing = sorted(set(_flat(first).items()) ^ set(_flat(other).items()))
        paths = list(dict.fromkeys(path for path, _ in differing))
        if paths:
            findings.guessed.append(f"{role} differs from {roles[0]}, whose values are used: {', '.join(paths)}")
    for role in roles:
        unknown = [name for name in replicas[role] if name not in ("replicas", "restartPolicy", "template")]
        findings.left_out += [f"{field}.{role}.{name}" for name in unknown]
    policies = {replicas[role].get("restartPolicy") for role in roles} - {None}
    if policies == {"Never"}:
        findings.queue.setdefault("lifecycle", {})["restartPolicy"] = "Never"
    elif policies - {"OnFailure", "Never"}:
        findings.guessed.append(f"restartPolicy {', '.join(sorted(policies))} became OnFailure")
    return first, nodes


def _flat(value: Raw) -> dict[str, str]:
    return {path: str(leaf) for path, leaf in leaves(value)}


def _read_elastic(policy: Raw, name: str, findings: Findings) -> None:
    low, high = policy.get("minReplicas"), policy.get("maxReplicas")
    if low is not None or high is not None:
        findings.job["elastic"] = {"minNodes": low or 1, **({"maxNodes": high} if high else {})}
    backend, host, port = policy.get("rdzvBackend"), policy.get("rdzvHost"), policy.get("rdzvPort")
    if backend and backend != "c10d":
        findings.into(findings.job, "distributed.rdzvBackend", "etcd-v2" if backend.startswith("etcd") else backend)
    if host and not host.startswith(f"{name}-"):
        findings.into(findings.job, "distributed.rdzvEndpoint", f"{host}:{port or 29400}")
    elif port and not str(host).endswith("-rdzv"):
        findings.into(findings.job, "distributed.port", port)
    if policy.get("maxRestarts") is not None:
        findings.queue.setdefault("lifecycle", {})["maxRestarts"] = policy["maxRestarts"]
    known = {
        "minReplicas",
        "maxReplicas",
        "rdzvBackend",
        "rdzvHost",
        "rdzvPort",
        "maxRestarts",
        "nProcPerNode",
        "rdzvId",
    }
    findings.left_out += [f"elasticPolicy.{one}" for one in policy if one not in known]


def read_train_job(one: Raw, objects: Objects, findings: Findings) -> Workload:
    """Kubeflow v2: the TrainJob laid over its runtime, if that is there."""
    spec, name = one["spec"], str(one["metadata"]["name"])
    if "replicaSpecs" in spec:
        return _read_older_train_job(spec, name, findings)
    reference = take(spec, "runtimeRef", default={})
    kind = reference.get("kind", "ClusterTrainingRuntime")
    runtime = objects.named(kind, reference.get("name"))
    pod, policy = ({}, {}) if runtime is None else _read_runtime(runtime, findings)
    if runtime is None:
        findings.guessed.append(
            f"{kind} {reference.get('name')} is not among the files: its image and pods are unknown"
        )
    elif findings.ours:
        objects.remove(runtime)
    trainer: Raw = take(spec, "trainer", default={})
    pod = merge(pod, {"spec": {"containers": [_trainer_container(trainer)]}})
    for patch in take(spec, "runtimePatches", default=[]):
        pod = _patched(pod, patch, findings)
    nodes = take(trainer, "numNodes") or policy.get("numNodes") or 1
    procs = take(trainer, "numProcPerNode") or policy.get("mpi", {}).get("numProcPerNode")
    if trainer:
        spec["trainer"] = trainer
    _end_of_life(spec, findings)
    if spec.get("managedBy") == "trainer.kubeflow.org/trainjob-controller":
        take(spec, "managedBy")
    return Workload(pod, nodes, procs if isinstance(procs, int) else None, (name, f"{name}-node-0-0"))


def _read_older_train_job(spec: Raw, name: str, findings: Findings) -> Workload:
    """The spelling of older texts, which no Trainer takes any more: a launcher and workers in the TrainJob itself."""
    runtime, total = take(spec, "trainingRuntime"), take(spec, "replicas")
    pod, nodes = _replicas(take(spec, "replicaSpecs", default={}), "replicaSpecs", ("launcher", "worker"), findings)
    findings.guessed.append(
        f"an older TrainJob: launcher and workers became nodes, each of which launches, without runtime {runtime}"
    )
    if total is not None and total != nodes:
        findings.guessed.append(f"replicas says {total}, where launcher and workers are {nodes}: {total} are used")
        nodes = int(total)
    return Workload(pod, nodes, None, (name, f"{name}-launcher-0"))


def _patched(pod: Raw, patch: Raw, findings: Findings) -> Raw:
    """A runtime patch, as far as it is about the nodes' pods and the job's labels."""
    manager = patch.pop("manager", "")
    patch.pop("time", None)
    template = patch.get("trainingRuntimeSpec", {}).get("template", {})
    for name in ("labels", "annotations"):
        found = take(template, "metadata", name, default={})
        if found:
            findings.job.setdefault(name, {}).update(found)
    for one in template.get("spec", {}).get("replicatedJobs", []):
        if one.get("name") == "node":
            pod = merge(pod, take(one, "template", "spec", "template", default={}))
            one.pop("name")
    findings.left_out += [f"runtimePatches of {manager}: {path}" for path, _ in leaves(patch)]
    return pod


def _trainer_container(trainer: Raw) -> Raw:
    found: Raw = {"name": "node"}
    for theirs, ours in (("image", "image"), ("command", "command"), ("args", "args"), ("env", "env")):
        value = take(trainer, theirs)
        if value is not None:
            found[ours] = value
    resources = take(trainer, "resourcesPerNode")
    return {**found, "resources": resources} if resources else found


def _read_runtime(runtime: Raw, findings: Findings) -> tuple[Raw, Raw]:
    """The pod of the step that trains, and the policy."""
    spec = runtime.get("spec", {})
    policy: Raw = take(spec, "mlPolicy", default={})
    gang = take(spec, "podGroupPolicy", "coscheduling")
    if gang is not None:
        findings.into(findings.queue, "scheduling.gang", "coscheduling")
        findings.into(findings.queue, "lifecycle.gangTimeoutSeconds", gang.get("scheduleTimeoutSeconds"))
    findings.left_out += [f"mlPolicy.{name}" for name in policy if name not in ("numNodes", "torch", "mpi")]
    if "mpi" in policy and not findings.ours:
        findings.guessed.append("MPI over ssh: each node starts its own processes instead, without ssh")
    job_set = spec.get("template", {}).get("spec", {})
    restarts = take(job_set, "failurePolicy", "maxRestarts")
    if restarts is not None:
        findings.into(findings.queue, "lifecycle.maxRestarts", restarts)
    jobs = job_set.get("replicatedJobs", [])
    chosen = next(
        (one for one in jobs if one.get("template", {}).get("metadata", {}).get("labels", {}).get(_STEP) == "trainer"),
        None,
    )
    chosen = chosen or (jobs[0] if jobs else None)
    if chosen is None:
        return {}, policy
    pod: Raw = take(chosen, "template", "spec", "template", default={})
    take(chosen, "template", "metadata", "labels", _STEP)
    chosen.pop("name", None)
    return pod, policy


READERS: dict[tuple[str, str], Callable[[Raw, Objects, Findings], Workload]] = {
    ("apps", "StatefulSet"): read_stateful_set,
    ("batch", "Job"): read_batch_job,
    ("kubeflow.org", "PyTorchJob"): read_pytorch_job,
    ("trainer.kubeflow.org", "TrainJob"): read_train_job,
}


def reader_of(one: Raw) -> Callable[[Raw, Objects, Findings], Workload] | None:
    """Who reads this object, if it is a workload at all."""
    return READERS.get((str(one.get("apiVersion")).partition("/")[0], str(one.get("kind"))))
