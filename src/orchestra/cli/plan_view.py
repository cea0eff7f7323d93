"""A plan for people."""

from __future__ import annotations

import shlex

from orchestra.api.template import Lifecycle
from orchestra.plan import Plan
from orchestra.plan.model import Volume


def show_plan(plan: Plan) -> str:
    """A few lines: the size and its reason, the launch line, what each node gets."""
    rows = [
        ("size", _size(plan)),
        *(("", note) for note in plan.notes),
        ("launch", shlex.join(plan.nodes[0].argv)),
        ("each node", _resources(plan)),
        ("rendezvous", _rendezvous(plan)),
        ("gang", _gang(plan)),
        *_labelled("volumes", [_volume(volume) for volume in plan.volumes]),
        *_labelled("code", [f"{plan.code.source} at {plan.code.mount_path}"] if plan.code else []),
        ("restarts", _restarts(plan.lifecycle)),
    ]
    body = "\n".join(f"  {label:<11}{text}" for label, text in rows)
    state = " (suspended)" if plan.suspended else ""
    return f"{plan.job} on queue {plan.queue}{state}\n{body}"


def _labelled(label: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(label if index == 0 else "", line) for index, line in enumerate(lines)]


def _size(plan: Plan) -> str:
    nodes = f"{plan.node_count} node{'s' if plan.node_count != 1 else ''}"
    procs = f"{plan.procs_per_node} process{'es' if plan.procs_per_node != 1 else ''}"
    text = f"{nodes} x {procs} = {plan.world_size}"
    if plan.elastic:
        text += f", elastic {plan.min_nodes} to {plan.max_nodes} nodes"
    return text


def _resources(plan: Plan) -> str:
    resources = plan.resources
    kind = f" ({resources.gpu_type})" if resources.gpu_type else ""
    parts = [
        f"{resources.gpus} GPU{'s' if resources.gpus != 1 else ''}{kind}" if resources.gpus else "no GPU",
        f"{resources.cpu} cpu" if resources.cpu else "",
        f"{resources.memory} memory" if resources.memory else "",
        f"{resources.shm} shm" if resources.shm else "",
    ]
    return ", ".join(part for part in parts if part)


def _rendezvous(plan: Plan) -> str:
    meeting = plan.rendezvous
    if plan.launch.launcher == "none":
        return f"none; MASTER_ADDR={plan.nodes[0].env['MASTER_ADDR']} and the rest are in the environment"
    if meeting.backend == "static" or plan.launch.launcher == "deepspeed":
        return f"at {plan.nodes[0].env['MASTER_ADDR']}:{plan.nodes[0].env['MASTER_PORT']}, {meeting.collective}"
    whose = "the job's own store" if meeting.own_store else "given"
    return f"{meeting.backend} at {meeting.store} ({whose}), {meeting.collective}"


def _gang(plan: Plan) -> str:
    all_at_once = f"{plan.gang.min_member} node{'s' if plan.gang.min_member != 1 else ''} at once"
    if plan.gang.scheduler == "kai":
        return f"{all_at_once}, by KAI" + (f" in queue {plan.gang.queue}" if plan.gang.queue else "")
    if plan.gang.scheduler == "coscheduling":
        return f"{all_at_once}, by coscheduling"
    return "no gang scheduler" if plan.min_nodes > 1 else "not needed"


def _volume(volume: Volume) -> str:
    if volume.exists:
        text = f"{volume.mount_path} {volume.purpose}: claim {volume.claim}"
    else:
        modes = ", ".join(volume.access_modes)
        text = f"{volume.mount_path} {volume.purpose}: new claim {volume.claim}, {volume.size} {modes}"
    return text + (", read-only" if volume.read_only else "") + (", kept after the job" if volume.retain else "")


def _restarts(lifecycle: Lifecycle) -> str:
    parts = ["never" if lifecycle.restart_policy == "Never" else f"up to {lifecycle.max_restarts} after failures"]
    if lifecycle.active_deadline_seconds:
        parts.append(f"deadline {lifecycle.active_deadline_seconds} s")
    if lifecycle.ttl_seconds_after_finished is not None:
        parts.append(f"deleted {lifecycle.ttl_seconds_after_finished} s after the end")
    parts.append(f"{lifecycle.grace_period_seconds} s to stop")
    return ", ".join(parts)
