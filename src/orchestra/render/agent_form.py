"""The default form: the agent as process 1, from a ConfigMap; nothing of ours has to be in the image but Python."""

from __future__ import annotations

import base64
import json
import shlex
from importlib import resources
from typing import Any

from orchestra.agent.pack import agent_bytes, agent_hash
from orchestra.plan.model import Plan
from orchestra.plan.where import AGENT_PORT
from orchestra.render.labels import MANAGER, metadata
from orchestra.render.launch import Launching
from orchestra.render.model import Options
from orchestra.render.site import PROGRAMS, STATE, Site
from orchestra.render.steps import ENVIRONMENT, can_aws, folders, preparation
from orchestra.render.volumes import Volumes
from orchestra.render.words import escaped, kubernetes

LAUNCH = "launch.json"
UPLOAD = "upload.sh"


def agent_config_maps(plan: Plan, launch: Launching, site: Site) -> tuple[dict[str, Any], dict[str, Any]]:
    """The agent (one a namespace, shared by all jobs) and this job's launch spec."""
    agent: dict[str, Any] = {
        "#": "The program that starts torchrun, tags its lines, saves on a stop and says why a rank failed.",
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"orchestra-agent-{agent_hash()}",
            **({"namespace": plan.namespace} if plan.namespace else {}),
            "labels": {"app.kubernetes.io/managed-by": MANAGER},
        },
        "#immutable": "Named by its content: never changed, and shared by all jobs of the namespace.",
        "immutable": True,
        "binaryData": {"agent.pyz": base64.b64encode(agent_bytes()).decode()},
    }
    data = {LAUNCH: json.dumps(launch_spec(plan, launch, site), indent=2) + "\n", "start.py": _start_program()}
    if _uploads(plan):
        data[UPLOAD] = _upload_script(plan)
    job = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(plan, site, f"{plan.job}-launch"),
        "data": data,
    }
    return agent, job


def _start_program() -> str:
    return resources.files(__package__).joinpath("pod_start.py").read_text("utf-8")


def launch_spec(plan: Plan, launch: Launching, site: Site) -> dict[str, Any]:
    """The agent's launch spec, one for all nodes: `$(NAME)` is filled in by start.py inside the pod."""
    lifecycle = plan.lifecycle
    never = lifecycle.restart_policy == "Never"
    env = {name: kubernetes(word) for name, word in launch.late_env.items()}
    if plan.launch.environment is not None:
        env["PATH"] = f"{ENVIRONMENT}/bin:$(PATH)"
    spec: dict[str, Any] = {
        "version": 1,
        "job": plan.job,
        "uid": plan.job,
        "procsPerNode": plan.procs_per_node,
        "launcher": plan.launch.launcher,
        "launcherArgv": [kubernetes(word) for word in launch.launcher] if plan.launch.launcher != "none" else [],
        "program": [escaped(word) for word in plan.launch.program],
        "env": env,
        "setup": _setup(plan),
        "files": {path: escaped(text) for path, text in plan.launch.files.items()},
        "gracePeriodSeconds": lifecycle.grace_period_seconds,
        "folder": f"{STATE}/{plan.job}",
        "resultFile": "/dev/termination-log",
        "listen": f"0.0.0.0:{AGENT_PORT}",
        "start": {
            "rankVariable": site.rank_variable,
            "idles": site.idles,
            "maxRestarts": 0 if never else lifecycle.max_restarts or 0,
        },
    }
    if lifecycle.hang_timeout_seconds is not None:
        spec["hangTimeoutSeconds"] = lifecycle.hang_timeout_seconds
    return spec


def _setup(plan: Plan) -> list[str]:
    """What comes before the launch, as one shell; the user's own set-up alone stays as it was planned."""
    lines = preparation(plan)
    if [line for line in lines if line.startswith("# --- ")] in ([], ["# --- set-up command"]):
        return [escaped(word) for word in plan.launch.setup]
    return ["/bin/sh", "-ec", escaped("\n".join(lines) + "\n")]


def agent_process(site: Site) -> dict[str, Any]:
    """Process 1 and its probes."""
    health = {"httpGet": {"path": "/healthz", "port": AGENT_PORT}}
    found: dict[str, Any] = {
        "#command": "start.py fills in what only the pod knows and then becomes the agent: process 1.",
        "command": ["python3", f"{PROGRAMS}/start.py", f"{PROGRAMS}/{LAUNCH}"],
        "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
        "#livenessProbe": "Whether the agent itself lives; it answers from the start. Hangs of ranks it finds itself.",
        "livenessProbe": {**health, "initialDelaySeconds": 30, "periodSeconds": 30, "failureThreshold": 5},
    }
    if site.readiness:
        found["readinessProbe"] = {**health, "periodSeconds": 15}
    return found


def _uploads(plan: Plan) -> bool:
    return plan.sync is not None and can_aws(plan.sync.output)


def uploader(plan: Plan, site: Site, options: Options, volumes: Volumes) -> list[dict[str, Any]]:
    """A sidecar that uploads while the agent trains and once more after it has ended."""
    if not _uploads(plan):
        return []
    paths = {PROGRAMS, folders(plan).output}
    rank = [{"name": "NODE_RANK", "valueFrom": site.node_rank}] if site.node_rank else []
    return [
        {
            "#": "A sidecar (an init container that stays): Kubernetes stops it after the trainer, so that the last"
            " upload has everything.",
            "name": "upload",
            "image": options.sync_image or plan.template.image,
            "restartPolicy": "Always",
            "command": ["/bin/sh", f"{PROGRAMS}/{UPLOAD}"],
            "env": rank,
            "envFrom": _credentials(plan),
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
            "volumeMounts": [one for one in volumes.mounts if one["mountPath"] in paths],
        }
    ]


def _credentials(plan: Plan) -> list[dict[str, Any]]:
    secret = plan.sync.secret_name if plan.sync else None
    return [{"secretRef": {"name": secret}}] if secret else []


def _upload_script(plan: Plan) -> str:
    sync, output = plan.sync, folders(plan).output
    if sync is None or output is None:
        return ""
    shared = any(volume.purpose == "checkpoints" for volume in plan.volumes)
    only_one = '  [ "${NODE_RANK:-0}" = 0 ] || return 0  # one claim for all nodes: one of them uploads\n'
    return f"""\
#!/bin/sh
S3_OUTPUT_DIR={shlex.quote(str(sync.output))}
LOCAL_OUTPUT_DIR={shlex.quote(output)}
stopping= nap=
upload() {{
{only_one if shared else ""}  # Half-written files stay at home: half a checkpoint looks like a whole one.
  aws s3 sync --no-progress --exclude '*.tmp' --exclude '*.part' --exclude '*tmp-*' "$LOCAL_OUTPUT_DIR" "$S3_OUTPUT_DIR"
}}
trap 'stopping=1; kill "$nap" 2>/dev/null' TERM
while [ -z "$stopping" ]; do
  sleep "${{SYNC_SECONDS:-{sync.interval}}}" &
  nap=$!
  wait "$nap"
  [ -n "$stopping" ] || upload || echo "the upload failed" >&2
done
upload  # once more, whatever it was doing when the trainer ended
"""
