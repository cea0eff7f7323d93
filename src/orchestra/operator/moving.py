"""What moves bytes in a pod: an init container and a native sidecar of the Orchestra image beside the trainer. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from orchestra.operator import names
from orchestra.plan import Plan
from orchestra.plan.model import Code

Json = dict[str, Any]

AUDIENCE = "orchestra-workspace"
WORKSPACE_URL = "http://orchestra-workspace.orchestra-system.svc:8080"
SHARED = "ReadWriteMany"
_TOKEN = "/var/run/orchestra-token"  # noqa: S105 -- a folder
_STATE = "/run/orchestra"
FETCH, SEND, FOLLOW = "orchestra-fetch", "orchestra-send", "orchestra-code"
OURS = (FETCH, SEND, FOLLOW)
LAST_UPLOAD = 300
"""Seconds after the trainer's end, a good one too, in which the sidecar sends what is not in the store yet."""
REFUSED = 3
"""Exit code of `orchestra.sync.worker`: another try would find the same."""
SOCKET = f"{_STATE}/state/orders.sock"
"""Where the agent takes orders of the sidecar about new code."""
RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}


@dataclass
class Moving:
    """What a worker's pod needs besides its trainer."""

    containers: list[Json] = field(default_factory=list)
    volumes: list[Json] = field(default_factory=list)
    mounts: list[Json] = field(default_factory=list)
    """Of the trainer."""
    output: str | None = None
    """Where the ranks write, if a folder was made for it."""
    data: str | None = None
    code: str | None = None
    """Where the program starts, unless the job says otherwise."""
    socket: str | None = None
    """Where the agent is to take orders, if somebody gives any."""


def fetched_code(plan: Plan) -> Code | None:
    """The code, if it is brought into the pod: a snapshot from the store, a repository, a bucket."""
    code = plan.code
    return code if code is not None and (code.snapshot or code.source in ("git", "s3")) else None


def _remote(plan: Plan) -> bool:
    return fetched_code(plan) is not None or bool(plan.sync and plan.sync.code)


def own_workspace(plan: Plan) -> bool:
    """Whether each pod has the code in a folder of its own, instead of a claim that all share."""
    return _remote(plan) and plan.node_count > 1 and not fills_claim(plan)


def fills_claim(plan: Plan) -> bool:
    """Whether the code is brought once, into a claim that the workers of all nodes mount (filling.py)."""
    return _remote(plan) and any(
        volume.purpose == "workspace"
        and not volume.exists
        and not volume.on_each_node
        and SHARED in volume.access_modes
        for volume in plan.volumes
    )


def code_orders(plan: Plan, url: str) -> tuple[Json, list[Json], list[Json]]:
    """Orders that bring the code, with the volumes and mounts that they need: a token, where the store is asked."""
    code = fetched_code(plan)
    orders: Json = {"codeFolder": code.mount_path if code else (plan.launch.working_dir or "/app")}
    _from(orders, code, url)
    if plan.sync is not None and plan.sync.code:
        orders["code"] = plan.sync.code
    if "workspace" not in orders:
        return orders, [], []
    source = {"serviceAccountToken": {"audience": AUDIENCE, "expirationSeconds": 3600, "path": "token"}}
    volume = {"name": "orchestra-token", "projected": {"sources": [source]}}
    return orders, [volume], [{"name": "orchestra-token", "mountPath": _TOKEN, "readOnly": True}]


def moving(plan: Plan, index: int, attempt: int, uid: str, image: str, url: str, env: list[Json], env_from: list[Json],
           security: Json) -> Moving:  # fmt: skip
    """The containers, volumes and mounts; nothing where nothing is moved."""
    made, sync, code = Moving(), plan.sync, fetched_code(plan)
    if code is None and sync is None:
        return made
    claims = {volume.purpose: volume.mount_path for volume in plan.volumes}
    orders: Json = {
        "job": plan.job, "uid": uid, "attempt": attempt, "node": index, "nodes": plan.node_count,
        "worker": names.worker(plan.job, index, attempt),
        "state": f"{_STATE}/sync", "logs": f"{_STATE}/state/logs",
        "grace": LAST_UPLOAD,
    }  # fmt: skip
    fetch_mounts: list[Json] = []
    if code is not None or (sync and sync.code):
        brought, volumes, fetch_mounts = code_orders(plan, url)
        orders |= brought | ({"sharedCode": True} if fills_claim(plan) else {})
        made.code = orders["codeFolder"]
        made.volumes += volumes
        if "workspace" not in claims or own_workspace(plan):
            _folder(made, "orchestra-code", orders["codeFolder"])
        if "workspace" in orders:
            made.socket = orders["socket"] = SOCKET
    if sync is not None:
        orders |= {"data": sync.data, "output": sync.output, "interval": sync.interval}
    if sync is not None and sync.data:
        made.data = orders["dataFolder"] = claims.get("datasets", "/data")
        if "datasets" not in claims:
            _folder(made, "orchestra-data", "/data")
    if sync is not None and sync.output:
        orders["outputFolder"] = claims.get("checkpoints", "/out")
        orders["sharedOutput"] = "checkpoints" in claims
        if "checkpoints" not in claims:
            made.output = "/out"
            _folder(made, "orchestra-out", "/out")
    if sync is not None and sync.secret_name:
        env_from = [*env_from, {"secretRef": {"name": sync.secret_name}}]
    elif code is not None and code.secret_name:
        env_from = [*env_from, {"secretRef": {"name": code.secret_name}}]
    told = {"name": "ORCHESTRA_ORDERS", "value": json.dumps({k: v for k, v in orders.items() if v is not None})}
    claimed = [{"name": volume.purpose, "mountPath": volume.mount_path} for volume in plan.volumes
               if not volume.read_only and not (volume.purpose == "workspace" and own_workspace(plan))]  # fmt: skip
    shared = [{"name": "orchestra-state", "mountPath": _STATE}, *made.mounts, *claimed]
    base = {"image": image, "env": [*env, told], "envFrom": env_from, "resources": RESOURCES, **security}
    words = ["python", "-m", "orchestra.sync.worker"]
    fetch = {"name": FETCH, "command": [*words, "fetch", "env:ORCHESTRA_ORDERS"],
             "terminationMessagePolicy": "FallbackToLogsOnError",  # what could not be fetched, for the job's status
             "volumeMounts": [*shared, *fetch_mounts], **base}  # fmt: skip
    if not fills_claim(plan) or (sync is not None and (sync.data or sync.output)):
        made.containers.append(fetch)
    if made.socket:
        follow = {"name": FOLLOW, "command": [*words, "follow", "env:ORCHESTRA_ORDERS"],
                  "restartPolicy": "Always", "volumeMounts": [*shared, *fetch_mounts], **base}  # fmt: skip
        made.containers.append(follow)
    if sync is not None and sync.output:
        send = {"name": SEND, "command": [*words, "send", "env:ORCHESTRA_ORDERS"],
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "restartPolicy": "Always", "volumeMounts": shared, **base}  # fmt: skip
        made.containers.append(send)
    return made


def _from(orders: Json, code: Code | None, url: str) -> None:
    if code is None:
        return
    if code.snapshot:
        orders["workspace"] = {"url": url, "snapshot": code.snapshot, "tokenFile": f"{_TOKEN}/token"}
    elif code.source == "git":
        orders["git"] = {"url": code.url or "", "ref": code.ref}
    else:
        orders["code"] = code.url


def _folder(made: Moving, name: str, path: str) -> None:
    made.volumes.append({"name": name, "emptyDir": {}})
    made.mounts.append({"name": name, "mountPath": path})
