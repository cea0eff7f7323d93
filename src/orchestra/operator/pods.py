"""The pods of a job: workers, and the rendezvous store that no worker's death takes away."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from orchestra.api.base import to_builtins
from orchestra.api.template import Scheduling
from orchestra.operator import elastic, filling, names
from orchestra.operator.kinds import JOB_LABEL, ROLE_LABEL
from orchestra.operator.lost_nodes import with_our_tolerations
from orchestra.operator.manifests import IMAGE
from orchestra.operator.moving import LAST_UPLOAD, OURS, RESOURCES, WORKSPACE_URL, moving, own_workspace
from orchestra.plan import Plan
from orchestra.plan.merge import merge
from orchestra.plan.where import ETCD_IMAGE

Json = dict[str, Any]

_POD_SECURITY = (
    "fsGroup", "fsGroupChangePolicy", "supplementalGroups", "supplementalGroupsPolicy", "sysctls", "runAsUser",
    "runAsGroup", "runAsNonRoot", "seccompProfile", "seLinuxOptions", "appArmorProfile",
)  # fmt: skip
_STOP_MARGIN = 10  # what the agent needs beyond the grace period before the kubelet loses patience
_STATE = "/run/orchestra"
_AGENT = "/orchestra"
_ETCD_DATA = "/var/run/etcd"
_PYTHON = 'exec "$(command -v python3 || command -v python)" -I -S'
_STORE_PROGRAM = """\
import signal, sys
from torch.distributed import TCPStore
store = TCPStore("0.0.0.0", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("rendezvous store listens on", sys.argv[1], flush=True)
signal.sigwait({signal.SIGTERM, signal.SIGINT})
"""


@dataclass(frozen=True)
class PodOptions:
    """What the operator knows and the plan does not."""

    sees_nodes: bool = True
    """Whether the operator decides which nodes are lost; otherwise Kubernetes evicts as it always does."""
    failures_left: int | None = None
    """An elastic job's budget in place: its launchers count the loss of members too, which is free."""
    image: str = ""
    """Orchestra's own image, for what moves bytes beside the trainer."""
    workspace_url: str = WORKSPACE_URL
    code_generation: int = 0
    """How often the job had new code in place: a worker that joins others must count as they do."""
    etcd_image: str = ETCD_IMAGE
    """For jobs that meet by `etcd-v2` and name no etcd."""


USUAL = PodOptions()


def worker_pod(plan: Plan, index: int, attempt: int, uid: str, owner: Json, options: PodOptions = USUAL) -> Json:
    """One worker: the agent as process 1 of the container `trainer`, in the user's image."""
    name = names.worker(plan.job, index, attempt)
    volumes, mounts = _volumes(plan)
    spec = launch_spec(plan, index, attempt, uid)
    env = [{"name": one.name, "value": one.value or ""} for one in plan.template.env if one.value_from is None]
    moved = moving(plan, index, attempt, uid, options.image or IMAGE, options.workspace_url,
                   [*env, *_references(plan)], _env_from(plan), _container_security(plan))  # fmt: skip
    spec["env"] |= {"ORCHESTRA_OUTPUT_DIR": moved.output} if moved.output else {}
    spec["env"] |= {"ORCHESTRA_DATA_DIR": moved.data} if moved.data else {}
    if moved.code:
        spec.setdefault("workingDir", moved.code)
    spec |= {"ordersSocket": moved.socket} if moved.socket else {}
    spec |= {"codeGeneration": options.code_generation} if options.code_generation else {}
    if plan.elastic and options.failures_left is not None:
        spec["failuresLeft"] = options.failures_left
    trainer = {
        "name": "trainer",
        "command": ["/bin/sh", "-c", f"{_PYTHON} {_AGENT}/agent.pyz run env:ORCHESTRA_SPEC"],
        "env": [*_references(plan), {"name": "ORCHESTRA_SPEC", "value": json.dumps(spec)}],
        "envFrom": _env_from(plan),
        "resources": _resources(plan),
        "ports": [{"name": "agent", "containerPort": names.AGENT_PORT}],
        "volumeMounts": [*mounts, *moved.mounts],
        "terminationMessagePolicy": "File",
        **_image(plan),
        **_container_security(plan),
    }
    pod_spec = {
        **_placement(plan, options),
        "hostname": name,
        "subdomain": plan.job,
        "terminationGracePeriodSeconds": _patience(plan),
        **({"initContainers": moved.containers} if moved.containers else {}),
        "containers": [trainer],
        "volumes": [*volumes, *moved.volumes],
    }
    metadata = {"name": name, "labels": names.labels(plan, "worker", attempt, index), "ownerReferences": [owner]}
    return _over_template(plan, metadata, pod_spec)


def _patience(plan: Plan) -> int:
    sends = plan.sync is not None and plan.sync.output
    return (plan.lifecycle.grace_period_seconds or 0) + _STOP_MARGIN + (LAST_UPLOAD if sends else 0)


def filling_pod(plan: Plan, uid: str, owner: Json, options: PodOptions = USUAL) -> Json:
    """The pod that fills the workspace's claim, with the workers' user, selectors and tolerations."""
    env = [{"name": one.name, "value": one.value or ""} for one in plan.template.env if one.value_from is None]
    secret = plan.code.secret_name if plan.code is not None else None
    secret = plan.sync.secret_name if plan.sync is not None and plan.sync.secret_name else secret
    more = [{"secretRef": {"name": secret}}] if secret else []
    base = {
        "image": options.image or IMAGE,
        "env": [*env, *_references(plan)],
        "envFrom": [*_env_from(plan), *more],
        "resources": RESOURCES,
        **_container_security(plan),
    }
    return filling.sync_pod(plan, uid, owner, _placement(plan, options), base, options.workspace_url)


def store_pod(plan: Plan, attempt: int, port: int, owner: Json, options: PodOptions = USUAL) -> Json:
    """The rendezvous store, outside the gang: torch's own in the job's own image, or an etcd."""
    name = names.store(plan.job, attempt)
    etcd = plan.rendezvous.backend == "etcd-v2"
    volumes, mounts = _template_volumes(plan)
    if etcd:
        volumes, mounts = [{"name": "data", "emptyDir": {}}], [{"name": "data", "mountPath": _ETCD_DATA}]
    container = _etcd(plan, port, mounts, options) if etcd else _tcp_store(plan, port, mounts)
    placement = _placement(plan, options)
    placement.pop("schedulerName", None)
    placement.pop("affinity", None)
    pod_spec = {
        **placement,
        "hostname": name,
        "subdomain": plan.job,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": volumes,
    }
    metadata = {"name": name, "labels": names.labels(plan, "store", attempt), "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}


def _etcd(plan: Plan, port: int, mounts: list[Json], options: PodOptions) -> Json:
    """Torchrun's `etcd-v2` speaks etcd's old protocol: versions 3.4 and 3.5 have it, behind --enable-v2."""
    return {
        "name": "store",
        "image": options.etcd_image,
        "command": [
            "etcd",
            "--enable-v2",
            f"--data-dir={_ETCD_DATA}/store",
            f"--listen-client-urls=http://0.0.0.0:{port}",
            f"--advertise-client-urls=http://{plan.rendezvous.store}",
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": mounts,
        **_container_security(plan),
    }


def _tcp_store(plan: Plan, port: int, mounts: list[Json]) -> Json:
    return {
        "name": "store",
        "command": ["/bin/sh", "-c", f'{_PYTHON.replace(" -I -S", "")} -c "$ORCHESTRA_STORE" {port}'],
        "env": [
            *({"name": one.name, "value": one.value or ""} for one in plan.template.env if one.value_from is None),
            {"name": "ORCHESTRA_STORE", "value": _STORE_PROGRAM},
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": mounts,
        **_image(plan),
        **_container_security(plan),
    }


def launch_spec(plan: Plan, index: int, attempt: int, uid: str) -> Json:
    """The launch spec (docs/worker-contract.md) of one worker."""
    node = plan.nodes[index]
    output = next((volume.mount_path for volume in plan.volumes if volume.purpose == "checkpoints"), f"{_STATE}/out")
    spec: Json = {
        "version": 1,
        "job": plan.job,
        "uid": uid,
        "attempt": attempt,
        "node": index,
        "nodes": elastic.wanted(plan),
        "procsPerNode": plan.procs_per_node,
        "launcher": plan.launch.launcher,
        "launcherArgv": node.launcher,
        "program": plan.launch.program,
        "env": {"ORCHESTRA_OUTPUT_DIR": output, **node.env},
        "setup": plan.launch.setup,
        "files": plan.launch.files,
        "gracePeriodSeconds": plan.lifecycle.grace_period_seconds or 0,
        "folder": f"{_STATE}/state",
        "resultFile": "/dev/termination-log",
        "readyFile": "/tmp/ready",  # noqa: S108 -- the names that existing probes look for
        "healthyFile": "/tmp/healthy",  # noqa: S108
        "listen": f"0.0.0.0:{names.AGENT_PORT}",
    }
    if plan.launch.working_dir:
        spec["workingDir"] = plan.launch.working_dir
    if plan.launch.environment is not None:
        spec["environment"] = {**to_builtins(plan.launch.environment), "cache": f"{_STATE}/environments"}
    if plan.lifecycle.hang_timeout_seconds:
        spec["hangTimeoutSeconds"] = plan.lifecycle.hang_timeout_seconds
    return spec


def _over_template(plan: Plan, metadata: Json, spec: Json) -> Json:
    """Our pod laid over the queue's and the job's own template, whose container `trainer` is ours."""
    template = plan.template.pod_template or {}
    body = merge({"metadata": template.get("metadata", {}), "spec": template.get("spec", {})}, {"spec": spec})
    before = [one for one in body["spec"].get("initContainers", []) if _is_whole(one)]
    body["spec"] = {**body["spec"], "initContainers": before}
    if not before:
        del body["spec"]["initContainers"]
    annotations = {**body["metadata"].get("annotations", {}), **plan.annotations, **elastic.marks(plan)}
    labels = {**body["metadata"].get("labels", {}), **metadata["labels"]}
    metadata = {**metadata, "labels": labels, **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body["spec"]}


def _is_whole(container: Json) -> bool:
    """Whether it is more than a template's words about a container of ours, which this pod does not have."""
    return container.get("name") not in OURS or "command" in container


def _placement(plan: Plan, options: PodOptions) -> Json:
    template, scheduling = plan.template, plan.template.scheduling or Scheduling()
    tolerations: list[Json] = to_builtins(scheduling.tolerations)
    placement: Json = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "schedulerName": scheduling.scheduler,
        "priorityClassName": scheduling.priority_class_name,
        "nodeSelector": scheduling.node_selector,
        "affinity": _affinity(plan, scheduling),
        "tolerations": with_our_tolerations(tolerations) if options.sees_nodes else tolerations,
        "topologySpreadConstraints": scheduling.topology_spread_constraints,
        "serviceAccountName": template.service_account_name,
        "imagePullSecrets": to_builtins(template.image_pull_secrets),
        "hostNetwork": template.network.host_network if template.network else None,
        "securityContext": _pod_security(plan),
    }
    return {name: value for name, value in placement.items() if value not in (None, {}, [])}


def _affinity(plan: Plan, scheduling: Scheduling) -> Json:
    affinity: Json = dict(scheduling.affinity or {})
    if scheduling.spread:
        selector = {"matchLabels": {JOB_LABEL: plan.job, ROLE_LABEL: "worker"}}
        apart = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
        anti = dict(affinity.get("podAntiAffinity", {}))
        required = [*anti.get("requiredDuringSchedulingIgnoredDuringExecution", []), apart]
        affinity["podAntiAffinity"] = {**anti, "requiredDuringSchedulingIgnoredDuringExecution": required}
    return affinity


def _image(plan: Plan) -> Json:
    image = {"image": plan.template.image, "imagePullPolicy": plan.template.image_pull_policy}
    return {name: value for name, value in image.items() if value}


def _security(plan: Plan) -> Json:
    context = plan.template.security_context
    return to_builtins(context) if context is not None else {}


def _pod_security(plan: Plan) -> Json:
    return {name: value for name, value in _security(plan).items() if name in _POD_SECURITY}


def _container_security(plan: Plan) -> Json:
    context = {name: value for name, value in _security(plan).items() if name not in _POD_SECURITY}
    return {"securityContext": context} if context else {}


def _references(plan: Plan) -> list[Json]:
    """Variables whose value Kubernetes fills in: references of the user's, and single keys of Secrets."""
    keys = [
        {"name": one.env or one.key, "valueFrom": {"secretKeyRef": {"name": one.name, "key": one.key}}}
        for one in plan.secrets
        if one.key
    ]
    return [*to_builtins(plan.env_references), *keys]


def _env_from(plan: Plan) -> list[Json]:
    whole = [{"secretRef": {"name": one.name}} for one in plan.secrets if not one.key]
    return [*to_builtins(plan.env_from), *whole]


def _resources(plan: Plan) -> Json:
    resources = plan.resources
    limits: Json = {}
    if resources.cpu is not None:
        limits["cpu"] = str(resources.cpu)
    if resources.memory is not None:
        limits["memory"] = str(resources.memory)
    if resources.gpus:
        limits["nvidia.com/gpu"] = str(resources.gpus)
    return {"requests": limits, "limits": limits} if limits else {}


def _volumes(plan: Plan) -> tuple[list[Json], list[Json]]:
    shm: Json = {"medium": "Memory"}
    if plan.resources.shm is not None:
        shm["sizeLimit"] = str(plan.resources.shm)
    volumes: list[Json] = [
        {"name": "orchestra-agent", "configMap": {"name": names.agent_config_map()}},
        {"name": "orchestra-state", "emptyDir": {}},
        {"name": "orchestra-shm", "emptyDir": shm},
    ]
    mounts: list[Json] = [
        {"name": "orchestra-agent", "mountPath": _AGENT, "readOnly": True},
        {"name": "orchestra-state", "mountPath": _STATE},
        {"name": "orchestra-shm", "mountPath": "/dev/shm"},  # noqa: S108 -- that is what it is for
    ]
    for volume in plan.volumes:
        if volume.purpose == "workspace" and own_workspace(plan):
            continue
        claim: Json = {"claimName": volume.claim}
        if volume.read_only:
            claim["readOnly"] = True
        if volume.on_each_node:
            limit: Json = {"sizeLimit": str(volume.size_per_node)} if volume.size_per_node else {}
            volumes.append({"name": volume.purpose, "emptyDir": limit})
        else:
            volumes.append({"name": volume.purpose, "persistentVolumeClaim": claim})
        mount: Json = {"name": volume.purpose, "mountPath": volume.mount_path}
        mounts.append(mount | ({"readOnly": True} if volume.read_only else {}))
    return [*volumes, *plan.extra_volumes], [*mounts, *plan.extra_mounts]


def _template_volumes(plan: Plan) -> tuple[list[Json], list[Json]]:
    """Volumes that the queue's own template brings (a Python on the host, say), for pods that are not workers."""
    spec = (plan.template.pod_template or {}).get("spec", {})
    containers = [one for one in spec.get("containers", []) if one.get("name") == "trainer"]
    return spec.get("volumes", []), containers[0].get("volumeMounts", []) if containers else []
