"""The pod of one node: the same for all targets but for its names."""

from __future__ import annotations

from typing import Any

from orchestra.api.base import to_builtins
from orchestra.api.template import Network, Scheduling
from orchestra.plan.merge import merge
from orchestra.plan.model import Plan
from orchestra.render.env import container_env, container_env_from
from orchestra.render.labels import COMPONENT, JOB, WORKER, pod_labels
from orchestra.render.launch import Launching
from orchestra.render.site import Site
from orchestra.render.steps import folders
from orchestra.render.volumes import Volumes

GPU = "nvidia.com/gpu"
LAST_UPLOAD_SECONDS = 60
"""Time after the job's own grace period for the last upload."""
_OF_CONTAINER = (
    "capabilities",
    "privileged",
    "allowPrivilegeEscalation",
    "readOnlyRootFilesystem",
    "procMount",
)


def pod_template(
    plan: Plan, launch: Launching, site: Site, volumes: Volumes, process: dict[str, Any], sidecars: list[dict[str, Any]]
) -> dict[str, Any]:
    """Metadata and spec of a pod. `process` is the command of process 1, and its probes."""
    pod_security, container_security = _security(plan)
    container: dict[str, Any] = {
        "name": site.container,
        "image": plan.template.image,
        **_present("imagePullPolicy", plan.template.image_pull_policy),
        **process,
        **_present("workingDir", plan.launch.working_dir or folders(plan).code),
        "env": container_env(plan, launch, site),
        **_present("envFrom", container_env_from(plan)),
        "ports": [{"name": port_name(site), "containerPort": _port(plan)}, *process.get("ports", [])],
        **_present("resources", _resources(plan)),
        **_present("securityContext", container_security),
        "volumeMounts": volumes.mounts,
    }
    spec: dict[str, Any] = {
        **_present("serviceAccountName", plan.template.service_account_name),
        **_present("imagePullSecrets", to_builtins(plan.template.image_pull_secrets)),
        **_present("securityContext", pod_security),
        **_scheduling(plan),
        "#terminationGracePeriodSeconds": "The job's own grace period, and time for the last upload.",
        "terminationGracePeriodSeconds": (plan.lifecycle.grace_period_seconds or 0) + LAST_UPLOAD_SECONDS,
        **_present("initContainers", sidecars),
        "containers": [container],
        "volumes": volumes.volumes,
    }
    ours = {
        "metadata": {"labels": pod_labels(plan, site), **_present("annotations", plan.annotations)},
        "spec": spec,
    }
    return merge(_foreign(plan, site), ours)


def port_name(site: Site) -> str:
    """The training operator finds the rendezvous port by this name."""
    return "pytorchjob-port" if site.container == "pytorch" else "rdzv"


def _port(plan: Plan) -> int:
    return int(plan.nodes[0].env["MASTER_PORT"])


def _foreign(plan: Plan, site: Site) -> dict[str, Any]:
    """The raw template that the user gave, with the trainer's container under the name it has here."""
    raw = dict(plan.template.pod_template or {})
    spec = raw.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
        containers = [
            {**one, "name": site.container} if isinstance(one, dict) and one.get("name") == "trainer" else one
            for one in spec["containers"]
        ]
        raw["spec"] = {**spec, "containers": containers}
    return raw


def _resources(plan: Plan) -> dict[str, Any]:
    """Requests equal to limits: a trainer that is throttled or evicted stops all the others."""
    wanted = {
        **_present("cpu", to_builtins(plan.resources.cpu) if plan.resources.cpu else None),
        **_present("memory", to_builtins(plan.resources.memory) if plan.resources.memory else None),
        **_present(GPU, plan.resources.gpus or None),
    }
    wanted = {name: str(value) for name, value in wanted.items()}
    return {"requests": wanted, "limits": dict(wanted)} if wanted else {}


def _security(plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    given = to_builtins(plan.template.security_context) if plan.template.security_context else {}
    container = {name: value for name, value in given.items() if name in _OF_CONTAINER}
    return {name: value for name, value in given.items() if name not in container}, container


def _scheduling(plan: Plan) -> dict[str, Any]:
    scheduling, network = plan.template.scheduling or Scheduling(), plan.template.network or Network()
    scheduler = scheduling.scheduler or ("kai-scheduler" if plan.gang.scheduler == "kai" else None)
    host: dict[str, Any] = {"hostNetwork": True} if network.host_network else {}
    if host and "dnsPolicy" not in ((plan.template.pod_template or {}).get("spec") or {}):
        host["dnsPolicy"] = "ClusterFirstWithHostNet"
    return {
        **_present("schedulerName", scheduler),
        **_present("priorityClassName", scheduling.priority_class_name),
        **_present("nodeSelector", dict(scheduling.node_selector)),
        **_affinity(plan, scheduling),
        **_present("tolerations", to_builtins(scheduling.tolerations)),
        **_present("topologySpreadConstraints", scheduling.topology_spread_constraints),
        **host,
    }


def spread_rule(plan: Plan) -> dict[str, Any]:
    """No two pods of this job on one machine."""
    selector = {"matchLabels": {JOB: plan.job, COMPONENT: WORKER}}
    return {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}


def _affinity(plan: Plan, scheduling: Scheduling) -> dict[str, Any]:
    """The user's rules; `spread` as a rule, and for several nodes as a wish where nobody said anything."""
    given = dict(scheduling.affinity or {})
    if scheduling.spread is False or (scheduling.spread is None and plan.max_nodes == 1):
        return _present("affinity", given)
    anti = dict(given.get("podAntiAffinity") or {})
    if scheduling.spread:
        name, rule = "requiredDuringSchedulingIgnoredDuringExecution", spread_rule(plan)
    else:
        name = "preferredDuringSchedulingIgnoredDuringExecution"
        rule = {"weight": 100, "podAffinityTerm": spread_rule(plan)}
    anti[name] = [*anti.get(name, []), rule]
    comment = "Each node of the job on a machine of its own" + ("." if scheduling.spread else ", where there is room.")
    return {"affinity": {**given, "#podAntiAffinity": comment, "podAntiAffinity": anti}}


def _present(name: str, value: Any) -> dict[str, Any]:
    return {name: value} if value not in (None, "", [], {}) else {}
