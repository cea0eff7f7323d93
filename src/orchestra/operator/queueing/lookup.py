"""Which queue a job means, and which jobs mean a queue."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from orchestra.api.base import decode_hook
from orchestra.kube.cache import Cache
from orchestra.kube.objects import Key, Metadata, Slim
from orchestra.operator.kinds import JobObject, QueueObject

FINISHED = ("Succeeded", "Failed")


class JobNames(Slim, frozen=True):
    """The little of a job's spec that is read of every job. Whatever else is wrong with a spec, this can be read."""

    job_queue: str = ""
    suspend: bool = False


class _KaiName(Slim, frozen=True):
    kai_queue: str = ""


class ConditionSeen(Slim, frozen=True):
    """The little of a condition."""

    type: str = ""
    status: str = ""
    reason: str = ""


class BudgetSeen(Slim, frozen=True):
    """When the next attempt may begin."""

    not_before: str | None = None


class StatusSeen(Slim, frozen=True):
    """The little of a job's status that is read of every job."""

    phase: str | None = None
    attempt: int | None = None
    gpus: int | None = None
    observed_generation: int | None = None
    budget: BudgetSeen | None = None
    conditions: tuple[ConditionSeen, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether it ended."""
        return self.phase in FINISHED

    def reason(self, kind: str) -> str:
        """The reason of a condition, empty where there is none."""
        return next((one.reason for one in self.conditions if one.type == kind), "")


_names = msgspec.json.Decoder(JobNames, dec_hook=decode_hook)
_kai_names = msgspec.json.Decoder(_KaiName)
_statuses = msgspec.json.Decoder(StatusSeen)


def names_of(job: JobObject) -> JobNames:
    """Its queue, and whether it is to rest."""
    try:
        return _names.decode(job.spec)
    except msgspec.DecodeError:
        return JobNames()


def kai_queue_of(queue: QueueObject) -> str:
    """The KAI Queue that it names, or nothing."""
    try:
        return _kai_names.decode(queue.spec).kai_queue
    except msgspec.DecodeError:
        return ""


def status_seen(job: JobObject) -> StatusSeen:
    """Where it stands, as the cache has it."""
    return _statuses.decode(job.status)


class QueueLookup:
    """A job's queue is the one of its own namespace, else the shared one of that name.

    A queue that is being deleted still serves the jobs that were there before, and no others: else either running jobs
    would lose their queue, or new ones would keep it from going for ever.
    """

    def __init__(self, jobs: Cache[JobObject], queues: Cache[QueueObject], shared_namespace: str) -> None:
        self.queues = queues
        self.shared_namespace = shared_namespace
        self._by_name = jobs.index(lambda job: (names_of(job).job_queue,))

    def queue_of(self, job: JobObject) -> QueueObject | None:
        """The queue that a job means."""
        return self._meant(job.metadata, names_of(job).job_queue)

    def _meant(self, meta: Metadata, name: str) -> QueueObject | None:
        for namespace in (meta.namespace, self.shared_namespace):
            found = self.queues.get(Key(namespace, name))
            if found is not None and _serves(found.metadata, meta):
                return found
        return None

    def jobs_of(self, queue: Metadata) -> Iterator[JobObject]:
        """The jobs that mean a queue, ended ones too."""
        for job in self._by_name.get(queue.name):
            if queue.namespace not in (job.metadata.namespace, self.shared_namespace):
                continue
            meant = self._meant(job.metadata, queue.name)
            if meant is not None and meant.metadata.uid == queue.uid:
                yield job

    def may_mean(self, queue: Metadata) -> list[Key]:
        """Every job that has to look again when this queue changes: also those it was hidden from."""
        jobs = self._by_name.get(queue.name)
        return [job.metadata.key for job in jobs if queue.namespace in (job.metadata.namespace, self.shared_namespace)]


def _serves(queue: Metadata, job: Metadata) -> bool:
    leaving = queue.deletion_timestamp
    return leaving is None or (job.creation_timestamp or "") <= leaving
