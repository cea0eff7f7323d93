"""Which queue a job means."""

from __future__ import annotations

from collections.abc import Iterable

from orchestra.api.job import TorchrunJob
from orchestra.api.queue import TorchrunQueue

SHARED_NAMESPACE = "orchestra-queues"


def queue_for(
    job: TorchrunJob, queues: Iterable[TorchrunQueue], shared_namespace: str = SHARED_NAMESPACE
) -> TorchrunQueue | None:
    """The queue of that name in the job's own namespace, else in the shared one.

    In files a namespace is often left out; an object without one goes where its reader is, so it matches any.
    """
    named = [queue for queue in queues if queue.metadata.name == job.spec.job_queue]
    home = job.metadata.namespace
    for wanted in (home, None, shared_namespace):
        for queue in named:
            if queue.metadata.namespace == wanted:
                return queue
    return named[0] if named and home is None else None
