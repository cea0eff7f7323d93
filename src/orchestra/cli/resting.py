"""Waiting until a job has come to rest."""

from __future__ import annotations

import time
from collections.abc import Callable

from orchestra.api.engine import Engine
from orchestra.api.job import TorchrunJob
from orchestra.plan.status import FINISHED, at_rest, status_of


def wait_for_rest(engine: Engine, name: str) -> TorchrunJob:
    """The job once it is suspended, failed or done; a supervisor that dies meanwhile is noticed."""
    return _wait(engine, name, at_rest)


def wait_for_end(engine: Engine, name: str) -> TorchrunJob:
    """The job once it is failed or done."""
    return _wait(engine, name, lambda job: status_of(job).phase in FINISHED)


def _wait(engine: Engine, name: str, until: Callable[[TorchrunJob], bool]) -> TorchrunJob:
    while True:
        engine.look()
        job = engine.get(name)
        if until(job):
            return job
        time.sleep(engine.tick)
