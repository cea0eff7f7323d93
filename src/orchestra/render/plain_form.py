"""The plain form around the script: its ConfigMap, command and probes."""

from __future__ import annotations

from typing import Any

from orchestra.plan.model import Plan
from orchestra.render.labels import metadata
from orchestra.render.launch import Launching
from orchestra.render.script import plain_script
from orchestra.render.site import PROGRAMS, STATE, Site

SCRIPT = "script.sh"


def plain_config_map(plan: Plan, launch: Launching, site: Site) -> dict[str, Any]:
    """The script, one for all nodes."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(plan, site, f"{plan.job}-script"),
        "data": {SCRIPT: plain_script(plan, launch, site)},
    }


def plain_process(site: Site) -> dict[str, Any]:
    """Process 1 and its probes. The script is healthy from its first line on."""
    found: dict[str, Any] = {
        "#command": "The script is process 1: it passes a stop on to the launcher and uploads before it goes.",
        "command": ["/bin/sh", f"{PROGRAMS}/{SCRIPT}"],
        "livenessProbe": _file_probe("healthy"),
    }
    if site.readiness:
        found |= {"#readinessProbe": "Ready once everything is fetched and set up.", "readinessProbe": _ready_probe()}
    return found


def _file_probe(name: str) -> dict[str, Any]:
    return {"exec": {"command": ["cat", f"{STATE}/{name}"]}, "initialDelaySeconds": 30, "periodSeconds": 30}


def _ready_probe() -> dict[str, Any]:
    return {"exec": {"command": ["cat", f"{STATE}/ready"]}, "periodSeconds": 15}
