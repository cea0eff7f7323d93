"""The launch spec: what the engine tells the agent."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class BadSpec(ValueError):
    """The launch spec cannot be used; says which field and why."""


@dataclass(frozen=True)
class LaunchSpec:
    """One worker of one attempt. Field by field as docs/worker-contract.md."""

    job: str
    uid: str
    attempt: int
    node: int
    nodes: int
    procs_per_node: int
    launcher: str
    launcher_argv: list[str]
    program: list[str]
    env: dict[str, str]
    setup: list[str]
    working_dir: str | None
    files: dict[str, str]
    grace_period_seconds: float
    hang_timeout_seconds: float | None
    folder: Path
    result_file: Path | None
    listen: str
    parent_pid: int | None
    failures_left: int | None
    log_bytes: int
    environment: dict[str, Any] | None = None
    """Requirements to install first: `requirements`, `manager`, `python`, and `cache`, the folder for environments."""
    ready_file: Path | None = None
    healthy_file: Path | None = None
    orders_socket: Path | None = None
    """Where a sidecar may give orders (orders.py)."""
    code_generation: int = 0
    """How often the job has had new code in place: ranks of all workers must agree on it."""

    @property
    def hosts_store(self) -> bool:
        """Whether this node's launcher holds the store through which the other nodes' launchers meet."""
        words = " ".join(self.launcher_argv).replace("_", "-")
        return self.nodes > 1 and ("is-host=1" in words or (self.node == 0 and "rdzv-backend=static" in words))

    @property
    def launchers_meet(self) -> bool:
        """Whether the nodes' launchers wait for each other at the end."""
        return self.nodes > 1 and self.launcher == "torchrun"


def read_spec(source: str) -> LaunchSpec:
    """Reads and checks a spec from a file, or from a variable (`env:NAME`: a pod needs no volume for it then).

    Raises BadSpec.
    """
    try:
        text = os.environ.get(source[4:], "") if source.startswith("env:") else Path(source).read_text("utf-8")
        data = json.loads(text)
    except (OSError, ValueError) as error:
        raise BadSpec(f"{source}: {error}") from error
    if not isinstance(data, dict):
        raise BadSpec(f"{source}: is not a JSON object")
    return parse_spec(data)


def parse_spec(data: dict[str, Any]) -> LaunchSpec:
    """Checks what the agent relies on; fields it does not know are left for newer agents."""
    if data.get("version") != 1:
        raise BadSpec(f"version: {data.get('version')!r} is not 1; engine and agent.pyz are of different releases")
    launcher = data.get("launcher", "none")
    if launcher not in ("torchrun", "deepspeed", "none"):
        raise BadSpec(f"launcher: {launcher!r} is none of torchrun, deepspeed, none")
    program = _words(data, "program")
    launcher_argv = _words(data, "launcherArgv")
    if not program:
        raise BadSpec("program: is empty")
    if launcher != "none" and not launcher_argv:
        raise BadSpec(f"launcherArgv: is empty, but the launcher is {launcher}")
    if not data.get("folder"):
        raise BadSpec("folder: is missing")
    setup = data.get("setup") or []
    timeout = data.get("hangTimeoutSeconds")
    return LaunchSpec(
        job=str(data.get("job", "")),
        uid=str(data.get("uid", "")),
        attempt=int(data.get("attempt", 1)),
        node=int(data.get("node", 0)),
        nodes=int(data.get("nodes", 1)),
        procs_per_node=int(data.get("procsPerNode", 1)),
        launcher=launcher,
        launcher_argv=launcher_argv,
        program=program,
        env={str(name): str(value) for name, value in (data.get("env") or {}).items()},
        setup=["sh", "-c", setup] if isinstance(setup, str) else [str(word) for word in setup],
        working_dir=data.get("workingDir") or None,
        files={str(name): str(text) for name, text in (data.get("files") or {}).items()},
        grace_period_seconds=float(data.get("gracePeriodSeconds", 30)),
        hang_timeout_seconds=None if timeout is None else float(timeout),
        folder=Path(data["folder"]).absolute(),
        result_file=Path(data["resultFile"]) if data.get("resultFile") else None,
        listen=data.get("listen") or "127.0.0.1:0",
        parent_pid=int(data["parentPid"]) if data.get("parentPid") else None,
        failures_left=None if data.get("failuresLeft") is None else int(data["failuresLeft"]),
        log_bytes=int(data.get("logBytes", 64 * 1024 * 1024)),
        environment=data.get("environment") or None,
        ready_file=Path(data["readyFile"]) if data.get("readyFile") else None,
        healthy_file=Path(data["healthyFile"]) if data.get("healthyFile") else None,
        orders_socket=Path(data["ordersSocket"]) if data.get("ordersSocket") else None,
        code_generation=int(data.get("codeGeneration") or 0),
    )


def _words(data: dict[str, Any], field: str) -> list[str]:
    value = data.get(field) or []
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise BadSpec(f"{field}: is not a list of words")
    return value
