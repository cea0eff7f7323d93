"""Small makers of queues and jobs, so that a test names only what it is about."""

from __future__ import annotations

from typing import Any

from orchestra.api import TorchrunJob, TorchrunQueue
from orchestra.api.base import from_builtins


def a_queue(name: str = "queue", gpus: int = 8, **spec: Any) -> TorchrunQueue:
    """A queue of 8-GPU nodes, unless said otherwise."""
    node = {"gpus": gpus, "cpus": 96, "memory": "512Gi"} if gpus else {"cpus": 8, "memory": "16Gi"}
    return from_builtins({"metadata": {"name": name}, "spec": {"nodeResources": node} | spec}, TorchrunQueue)


def a_cpu_queue(name: str = "queue", **spec: Any) -> TorchrunQueue:
    """A queue without GPUs."""
    return a_queue(name, gpus=0, **spec)


def a_job(name: str = "job", queue: str = "queue", **spec: Any) -> TorchrunJob:
    """A job that runs `python train.py`, unless said otherwise."""
    spec = {"jobQueue": queue, "command": "python train.py"} | spec
    return from_builtins({"metadata": {"name": name}, "spec": spec}, TorchrunJob)
