"""The lines of all queues whose limits the operator keeps: from what the caches have, and what was just decided.

A cache is behind our own writes. A job that was just let in counts before the cache knows, else the next one would be
let in with the same room. All else is read from the objects, so a new operator finds the lines as they were.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec

from orchestra.api.job import TorchrunJob
from orchestra.api.kubernetes import ObjectMeta
from orchestra.api.queue import ResourceShare, TorchrunQueue, TorchrunQueueSpec
from orchestra.kube.cache import Cache, Change
from orchestra.kube.objects import Key, by_controller
from orchestra.operator.kinds import JobObject, PodObject, QueueObject
from orchestra.operator.queueing.line import NO_LIMITS, UNLIMITED, Amounts, Claim, Place, places
from orchestra.operator.queueing.lookup import JobNames, QueueLookup, StatusSeen, names_of, status_seen
from orchestra.operator.quotas import EXCEEDED
from orchestra.plan.planner import needs_of
from orchestra.plan.status import seconds_of

_HOLDING = ("Provisioning", "Running")
_NEVER_LET_IN = ("QueueNotFound", "Invalid")
_TEXT_SECONDS = 1.0  # new words for those who go on waiting: so often at most

_NOT_YET = Place(False, "QueueLimit", "its pause is not over yet", look_again=1.0)

Wake = Callable[[Key], None]
Priority = Callable[[str | None], int]


def limits_of(queue: TorchrunQueueSpec) -> Amounts:
    """What the operator has to keep: nothing where KAI does."""
    if queue.kai_queue:
        return NO_LIMITS
    shares = queue.resources
    return Amounts(_whole(shares.gpu, 1), _whole(shares.cpu, 1000), _whole(shares.memory, 1))


def _whole(share: ResourceShare, units: int) -> int:
    return UNLIMITED if share.limit.value < 0 else int(share.limit.value * units // 1)


@dataclass
class _Line:
    """One queue's line, as last worked out."""

    limit: Amounts
    spec: TorchrunQueueSpec
    generation: int
    asks: dict[str, tuple[int, Amounts | None, str | None]] = field(default_factory=dict)
    """By UID: generation of the job, what it asks for, its priority class."""
    places: dict[str, Place] = field(default_factory=dict)
    told: dict[str, Place] = field(default_factory=dict)
    """What each job was last told."""
    keys: dict[str, Key] = field(default_factory=dict)
    fresh: bool = False


class Lines:
    """Who may start, and who is woken when that changes."""

    def __init__(
        self,
        lookup: QueueLookup,
        jobs: Cache[JobObject],
        pods: Cache[PodObject],
        *,
        wake: Wake,
        priority: Priority = lambda _name: 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._lookup, self._wake, self._priority, self._clock = lookup, wake, priority, clock
        self._pods_of = pods.index(by_controller)
        self._jobs_by_uid = jobs.index(lambda job: (job.metadata.uid,))
        self._queues_by_uid = lookup.queues.index(lambda queue: (queue.metadata.uid,))
        self._let_in: dict[str, int] = {}
        self._known: dict[str, tuple[str, JobNames, StatusSeen]] = {}
        self._lines: dict[str, _Line] = {}
        self._stale: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        jobs.listen(self._job_changed)
        pods.listen(self._pod_changed)
        lookup.queues.listen(self._queue_changed)

    # ---- for the controller of jobs

    def place_of(self, job: JobObject, queue: QueueObject) -> Place | None:
        """What a job that could run is told now; None where the queue has no line."""
        line = self._line(queue)
        if line is None:
            return None
        uid = job.metadata.uid
        if not line.fresh or uid not in line.places:
            self._work_out(queue, line, asking=uid)
        place = line.places.get(uid, _NOT_YET)
        line.told[uid] = place
        return place

    def decided(self, job: JobObject, *, starts: int | None, phase: str | None) -> None:
        """What was decided about a job: the attempt that now starts, or where it stays."""
        uid = job.metadata.uid
        if starts is not None:
            if self._let_in.get(uid) != starts:
                self._let_in[uid] = starts
                self._disturb(job)
        elif phase not in _HOLDING and self._let_in.pop(uid, None) is not None:
            self._disturb(job)

    def priorities_changed(self) -> None:
        """A PriorityClass came, went or changed."""
        for uid, line in self._lines.items():
            line.fresh = False
            self._soon(uid)

    # ---- one line

    def _line(self, queue: QueueObject) -> _Line | None:
        meta = queue.metadata
        known = self._lines.get(meta.uid)
        if known is not None and known.generation == meta.generation:
            return known if known.limit != NO_LIMITS else None
        try:
            spec = queue.read_spec()
        except msgspec.ValidationError:
            return None
        made = _Line(limits_of(spec), spec, meta.generation, told=known.told if known else {})
        self._lines[meta.uid] = made
        return made if made.limit != NO_LIMITS else None

    def _work_out(self, queue: QueueObject, line: _Line, asking: str = "") -> None:
        claims, guest = [], False
        line.keys.clear()
        there = set()
        for job in self._lookup.jobs_of(queue.metadata):
            there.add(job.metadata.uid)
            claim = self._claim(queue, line, job)
            if claim is None and job.metadata.uid == asking:  # in the line only because it asks: not when others do
                claim, guest = self._claim(queue, line, job, asking=True), True
            if claim is not None:
                claims.append(claim)
                line.keys[claim.uid] = job.metadata.key
        line.places = places(queue.metadata.name, line.limit, claims)
        line.fresh = not guest
        for memory in (line.asks, line.told):
            for gone in [uid for uid in memory if uid not in there]:
                del memory[gone]

    def _claim(self, queue: QueueObject, line: _Line, job: JobObject, *, asking: bool = False) -> Claim | None:
        """The job's claim; None for one that neither holds a share nor waits for one."""
        meta = job.metadata
        names, seen = self._read(job)
        holds = self._holds(job, names, seen)
        if not holds and not self._waits(job, names, seen, asking=asking):
            return None
        asks, priority_class = self._asks(queue, line, job)
        if asks is None:
            return None
        return Claim(
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            asks=asks,
            holds=holds,
            priority=self._priority(priority_class),
            arrival=meta.creation_timestamp or "",
        )

    def _read(self, job: JobObject) -> tuple[JobNames, StatusSeen]:
        """Decoded once a version: a line of thousands is worked out with every step."""
        meta = job.metadata
        known = self._known.get(meta.uid)
        if known is None or known[0] != meta.resource_version:
            known = self._known[meta.uid] = (meta.resource_version, names_of(job), status_seen(job))
        return known[1], known[2]

    def _holds(self, job: JobObject, names: JobNames, seen: StatusSeen) -> bool:
        """Whether it uses its share: also between two attempts, and as long as a pod of it is there."""
        uid = job.metadata.uid
        expected = self._let_in.get(uid)
        if expected is not None:
            if (seen.attempt or 0) < expected and not seen.finished:
                return True  # the cache does not know yet
            del self._let_in[uid]
        if seen.phase in _HOLDING or _alive(self._pods_of.get(uid)):
            return True
        if seen.finished or names.suspend or job.metadata.deletion_timestamp is not None:
            return False
        return seen.phase == "Pending" and bool(seen.attempt) and seen.reason("Phase") not in _NEVER_LET_IN

    def _waits(self, job: JobObject, names: JobNames, seen: StatusSeen, *, asking: bool) -> bool:
        meta = job.metadata
        if seen.finished or names.suspend or meta.deletion_timestamp is not None:
            return False
        if not asking and seen.reason("Valid") == "Invalid" and seen.observed_generation == meta.generation:
            return False  # it cannot run, and must not stand in the way of those who can
        if not asking and seen.reason("Phase") == EXCEEDED:
            return False  # nor one that its namespace has no room for
        pause = seconds_of(seen.budget.not_before) if seen.budget else None
        return pause is None or pause <= self._clock()

    def _asks(self, queue: QueueObject, line: _Line, job: JobObject) -> tuple[Amounts | None, str | None]:
        meta = job.metadata
        known = line.asks.get(meta.uid)
        if known is not None and known[0] == meta.generation:
            return known[1], known[2]
        asks, priority_class = _needs(queue, line.spec, job)
        line.asks[meta.uid] = (meta.generation, asks, priority_class)
        return asks, priority_class

    # ---- changes

    def _job_changed(self, change: Change[JobObject]) -> None:
        job = change.new or change.old
        if job is None or not self._lines:
            return
        if change.new is None:
            self._let_in.pop(job.metadata.uid, None)
            self._known.pop(job.metadata.uid, None)
        if change.old is None or change.new is None or _matters(change.old, change.new):
            self._disturb(job)

    def _pod_changed(self, change: Change[PodObject]) -> None:
        old, new = change.old, change.new
        if not self._lines or old is None or old.ended or (new is not None and not new.ended):
            return
        for job in self._jobs_by_uid.get(old.metadata.controller_uid):
            self._disturb(job)

    def _queue_changed(self, change: Change[QueueObject]) -> None:
        if change.new is None and change.old is not None:
            self._lines.pop(change.old.metadata.uid, None)
        elif change.new is not None and change.new.metadata.uid in self._lines:
            self._lines[change.new.metadata.uid].fresh = False
            self._soon(change.new.metadata.uid)

    def _disturb(self, job: JobObject) -> None:
        queue = self._lookup.queue_of(job)
        line = self._lines.get(queue.metadata.uid) if queue is not None else None
        if queue is not None and line is not None and line.limit != NO_LIMITS:
            line.fresh = False
            self._soon(queue.metadata.uid)

    def _soon(self, uid: str) -> None:
        """Once all changes of this moment are in."""
        if uid not in self._stale:
            self._stale.add(uid)
            asyncio.get_running_loop().call_soon(self._look, uid)

    def _look(self, uid: str) -> None:
        """Wake whoever may start now, at once; and, with time, whoever only moved up."""
        self._stale.discard(uid)
        queue = next(iter(self._queues_by_uid.get(uid)), None)
        line = self._line(queue) if queue is not None else None
        if line is None or queue is None:
            return
        if not line.fresh:
            self._work_out(queue, line)
        moved = [one for one, place in line.places.items() if one in line.told and line.told[one] != place]
        for one in moved:
            if line.places[one].may_start:
                self._wake(line.keys[one])
        if any(not line.places[one].may_start for one in moved) and uid not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[uid] = loop.call_later(_TEXT_SECONDS, self._tell_all, uid)

    def _tell_all(self, uid: str) -> None:
        self._timers.pop(uid, None)
        line = self._lines.get(uid)
        if line is not None:
            for one, place in line.places.items():
                if one in line.told and line.told[one] != place:
                    self._wake(line.keys[one])


def _needs(queue: QueueObject, spec: TorchrunQueueSpec, job: JobObject) -> tuple[Amounts | None, str | None]:
    meta = job.metadata
    try:
        read = TorchrunJob(metadata=ObjectMeta(name=meta.name, namespace=meta.namespace), spec=job.read_spec())
    except msgspec.ValidationError:
        return None, None
    needs = needs_of(TorchrunQueue(metadata=ObjectMeta(name=queue.metadata.name), spec=spec), read)
    if needs is None:
        return None, None
    nodes, each, priority_class = needs
    cpu = int(each.cpu.value * 1000 // 1) if each.cpu else 0
    memory = each.memory.whole if each.memory else 0
    return Amounts(nodes * each.gpus, nodes * cpu, nodes * memory), priority_class


def _alive(pods: Collection[PodObject]) -> bool:
    return any(pod.is_worker and not pod.ended for pod in pods)


def _matters(old: JobObject, new: JobObject) -> bool:
    """Whether a change of a job can change a line: most are progress."""
    before, after = old.metadata, new.metadata
    if before.generation != after.generation or before.deletion_timestamp != after.deletion_timestamp:
        return True
    return bytes(old.status) != bytes(new.status) and _summary(status_seen(old)) != _summary(status_seen(new))


def _summary(seen: StatusSeen) -> tuple[object, ...]:
    return seen.phase, seen.attempt, seen.budget, seen.reason("Valid"), seen.reason("Phase"), seen.observed_generation
