"""The last plans and queues, kept: each look at a job asks for its plan, and most looks change nothing of it.

A plan is a pure function of the queue's spec, the job's spec, the attempt and a few numbers of the status. Those are
the key; generations stand for specs, since the API server counts them up with each change. Few are kept, since a large
gang's plan is large: what helps is that the looks at one job come in a row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

from orchestra.api.job import TorchrunJob, Workers
from orchestra.api.kubernetes import ObjectMeta
from orchestra.api.queue import TorchrunQueue
from orchestra.operator.attempt import plan_attempt
from orchestra.operator.kinds import QueueObject
from orchestra.plan import Plan, status

_MOST_NODES = 8 * 512

V = TypeVar("V")


class Plans:
    """Nobody changes what this gives out: it is shared by all who ask."""

    def __init__(self, etcd_endpoint: str | None = None) -> None:
        self._etcd = etcd_endpoint
        self._queues: OrderedDict[Hashable, TorchrunQueue] = OrderedDict()
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._nodes = 0

    def queue(self, found: QueueObject) -> TorchrunQueue:
        """The queue, read. Raises `msgspec.ValidationError`."""
        meta = found.metadata

        def read() -> TorchrunQueue:
            return TorchrunQueue(metadata=ObjectMeta(name=meta.name), spec=found.read_spec())

        made = _remembered(self._queues, (meta.uid, meta.generation), read)
        if len(self._queues) > 100:
            self._queues.popitem(last=False)
        return made

    def attempt(self, found: QueueObject, job: TorchrunJob, uid: str, attempt: int) -> Plan:
        """The plan of one attempt, with the names of its pods. Raises `Invalid`."""
        said, used = status.status_of(job), status.status_of(job).budget
        key = (
            (found.metadata.uid, found.metadata.generation),
            (uid, job.metadata.generation, attempt),
            (used.spent, used.free_retries) if used else None,
            (said.workers or Workers()).created,
        )
        known = len(self._plans)
        made = _remembered(self._plans, key, lambda: plan_attempt(self.queue(found), job, uid, attempt, self._etcd))
        if len(self._plans) > known:
            self._nodes += len(made.nodes)
        while self._nodes > _MOST_NODES and len(self._plans) > 1:
            _, oldest = self._plans.popitem(last=False)
            self._nodes -= len(oldest.nodes)
        return made


def _remembered(kept: OrderedDict[Hashable, V], key: Hashable, make: Callable[[], V]) -> V:
    if key in kept:
        kept.move_to_end(key)
        return kept[key]
    made = kept[key] = make()
    return made
