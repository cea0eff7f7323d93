"""The pod `<job>-sync-0`, which fills the claim that all workers mount as their workspace. Pure.

Only where several nodes share a claim: one node's claim is filled by its worker's own init container, and without a
claim each worker brings its own. The pod stays when it is done: its log tells what it did, and what it brought stands
on it, so that other code (a job that was given some while it was suspended) is brought by another one.
"""

from __future__ import annotations

import json
from dataclasses import replace

from orchestra.api.job import TorchrunJob
from orchestra.operator import names
from orchestra.operator.decision import Decision, Observation, told
from orchestra.operator.kinds import PodObject
from orchestra.operator.moving import Json, code_orders, fetched_code, fills_claim
from orchestra.plan import Plan
from orchestra.plan.merge import merge
from orchestra.plan.status import seconds_of

BROUGHT = "torchrun.ai/brought"
"""Annotation of the pod: what it brings."""
ROLE = "sync"
_REFUSED = 3  # `orchestra.sync.worker`: another try would find the same
_AGAIN_SECONDS = 5.0
_CONTAINER = "sync"


def name(job: str) -> str:
    """Its name: people look for it."""
    return f"{job}-sync-0"


def needed(seen: Observation, job: TorchrunJob, plan: Plan, now: float) -> Decision | None:
    """What to do before workers may start; None when the claim holds the code, or there is none to fill."""
    if not fills_claim(plan):
        return None
    pod = seen.sync_pod
    if pod is None:
        words = f"bringing {what(plan)} into claim {_claim(plan)}; kubectl logs {name(plan.job)} tells how far it is"
        return replace(told(job, "Syncing", "Filling", words, now), fill=True, look_again=5.0)
    if pod.leaving or _brought(pod) != what(plan):
        made = told(job, "Syncing", "Filling", f"bringing {what(plan)} instead of what was there", now)
        return replace(made, delete=() if pod.leaving else (pod,))
    if pod.status.phase == "Succeeded":
        return None
    if pod.status.phase != "Failed":
        said = waits_for(pod)
        words = f"bringing {what(plan)} into claim {_claim(plan)}" + (f"; it waits: {said}" if said else "")
        return told(job, "Syncing", "Waiting" if said else "Filling", words, now)
    return _failed(job, pod, now)


def _failed(job: TorchrunJob, pod: PodObject, now: float) -> Decision:
    ends = [one.state.terminated for one in pod.status.container_statuses if one.state.terminated is not None]
    said = next((line for end in ends for line in reversed(end.message.splitlines()) if line.strip()), "")
    words = said.removeprefix("error: ") or pod.status.message or f"{pod.metadata.name} failed"
    if any(end.exit_code == _REFUSED for end in ends):
        return told(job, "Failed", "SyncFailed", words, now, warning=True)
    times = [seconds for end in ends if (seconds := seconds_of(end.finished_at)) is not None]
    ended = max(times, default=now - _AGAIN_SECONDS)
    left = ended + _AGAIN_SECONDS - now
    made = told(job, "Syncing", "SyncRetry", f"{words}; it is tried again", now, warning=True)
    return replace(made, look_again=left) if left > 0 else replace(made, delete=(pod,))


def waits_for(pod: PodObject) -> str:
    """Why it does not run yet, as the cluster tells it."""
    for one in pod.status.container_statuses:
        if one.state.waiting is not None and one.state.waiting.reason not in ("", "ContainerCreating"):
            return f"{one.state.waiting.reason}: {one.state.waiting.message}".rstrip(": ")
    told = (one for one in pod.status.conditions if one.type == "PodScheduled" and one.status == "False")
    return next((one.message for one in told if one.message), "")


def what(plan: Plan) -> str:
    """What is brought, in words that are another one for other code."""
    code = fetched_code(plan)
    if code is None:
        return plan.sync.code or "" if plan.sync is not None else ""
    if code.snapshot:
        return f"snapshot {code.snapshot[:12]}"
    return f"{code.source} {code.url or ''}" + (f" at {code.ref}" if code.ref else "")


def sync_pod(plan: Plan, uid: str, owner: Json, placement: Json, base: Json, url: str) -> Json:
    """The pod. `placement`: as the workers', or a volume may be bound where no worker can go."""
    orders, volumes, mounts = code_orders(plan, url)
    orders |= {"job": plan.job, "uid": uid, "worker": name(plan.job), "state": "/run/orchestra/sync"}
    told = {"name": "ORCHESTRA_ORDERS", "value": json.dumps(orders)}
    container = {
        **base,
        "name": _CONTAINER,
        "command": ["python", "-m", "orchestra.sync.worker", "fetch", "env:ORCHESTRA_ORDERS"],
        "env": [*base.get("env", []), told],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "orchestra-state", "mountPath": "/run/orchestra"},
            {"name": "workspace", "mountPath": orders["codeFolder"]},
            *mounts,
        ],
    }
    template = (plan.template.pod_template or {}).get("spec", {})
    alike = [one for one in template.get("initContainers", []) if one.get("name") == "orchestra-fetch"]
    if alike:  # what a queue says of the container that fetches holds for this one too
        container = merge(alike[0], container)
    spec: Json = {
        **{key: value for key, value in placement.items() if key not in ("schedulerName", "topologySpreadConstraints")},
        "affinity": {key: value for key, value in placement.get("affinity", {}).items() if key == "nodeAffinity"},
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [
            {"name": "orchestra-state", "emptyDir": {}},
            {"name": "workspace", "persistentVolumeClaim": {"claimName": _claim(plan)}},
            *volumes,
            *(template.get("volumes", []) if alike else []),
        ],
    }
    metadata = {
        "name": name(plan.job),
        "labels": names.labels(plan, ROLE),
        "annotations": {BROUGHT: what(plan)},
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _claim(plan: Plan) -> str:
    return next((volume.claim for volume in plan.volumes if volume.purpose == "workspace"), "")


def _brought(pod: PodObject) -> str:
    return (pod.metadata.annotations or {}).get(BROUGHT, "")
