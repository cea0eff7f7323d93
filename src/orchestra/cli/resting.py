"""Waiting until a job has come to rest."""

from __future__ import annotations

import time

from orchestra.api.job import TorchrunJob
from orchestra.local.engine import LocalEngine
from orchestra.plan.status import RESTING


def wait_for_rest(engine: LocalEngine, name: str) -> TorchrunJob:
    """The job once it is suspended, failed or done; a supervisor that dies meanwhile is noticed."""
    while True:
        engine.look()
        job = engine.get(name)
        if job.status and job.status.phase in RESTING:
            return job
        time.sleep(0.05)
