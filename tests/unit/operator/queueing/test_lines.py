"""Who keeps the lines: counts whom it just let in before the cache does, wakes who may start, tells the others later."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from orchestra.kube.cache import Cache
from orchestra.kube.objects import Key, Metadata
from orchestra.operator.kinds import JobObject, PodObject, QueueObject
from orchestra.operator.queueing.lines import Lines
from orchestra.operator.queueing.lookup import QueueLookup

CREATED = "2026-01-01T00:00:0{}Z"


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


class World:
    """Caches that a test fills, and who was woken."""

    def __init__(self, limit: int, jobs: int = 0) -> None:
        self.jobs: Cache[JobObject] = Cache()
        self.queues: Cache[QueueObject] = Cache()
        self.pods: Cache[PodObject] = Cache()
        self.woken: list[str] = []
        self.version = 0
        lookup = QueueLookup(self.jobs, self.queues, "shared")
        self.priorities: dict[str | None, int] = {}
        self.lines = Lines(
            lookup,
            self.jobs,
            self.pods,
            wake=lambda key: self.woken.append(key.name),
            priority=lambda name: self.priorities.get(name, 0),
            clock=lambda: 0.0,
        )
        self.queue(limit)
        for number in range(jobs):
            self.job(f"j{number}", at=number)

    def queue(self, limit: int, generation: int = 1) -> None:
        self.version += 1
        meta = Metadata(
            name="q", namespace="ns", uid="queue", resource_version=str(self.version), generation=generation
        )
        spec = {"nodeResources": {"gpus": 8}, "resources": {"gpu": {"limit": limit}}}
        self.queues.put(QueueObject(metadata=meta, spec=raw(spec)))

    def job(self, name: str, phase: str | None = None, *, at: int = 0, attempt: int = 0, priority: str | None = None,
            reason: str = "Test") -> JobObject:  # fmt: skip
        self.version += 1
        meta = Metadata(name=name, namespace="ns", uid=name, resource_version=str(self.version), generation=1,
                        creation_timestamp=CREATED.format(at))  # fmt: skip
        spec: dict[str, Any] = {"jobQueue": "q", "command": "python a.py", "numGPUs": 8}
        if priority:
            spec["overrides"] = {"priorityClassName": priority}
        condition = {"type": "Phase", "status": "True", "reason": reason, "message": "", "lastTransitionTime": ""}
        status = {"phase": phase, "attempt": attempt, "conditions": [condition]} if phase else {}
        made = JobObject(metadata=meta, spec=raw(spec), status=raw(status))
        self.jobs.put(made)
        return made

    def may_start(self, name: str) -> bool:
        job, queue = self.jobs.get(Key("ns", name)), self.queues.get(Key("ns", "q"))
        assert job is not None
        assert queue is not None
        place = self.lines.place_of(job, queue)
        assert place is not None
        return place.may_start

    def let_in(self, name: str) -> None:
        job = self.jobs.get(Key("ns", name))
        assert job is not None
        self.lines.decided(job, starts=1, phase="Provisioning")


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_who_was_let_in_counts_before_the_cache_knows() -> None:
    async def story() -> None:
        world = World(limit=8, jobs=1)
        assert world.may_start("j0")
        world.let_in("j0")
        world.priorities["high"] = 10
        world.job("urgent", at=5, priority="high")
        assert not world.may_start("urgent"), "the cache still calls j0 a newcomer of lower priority"
        world.job("j0", "Provisioning", attempt=1)
        assert not world.may_start("urgent")
        world.job("j0", "Succeeded", attempt=1)
        assert world.may_start("urgent")

    asyncio.run(story())


def test_who_was_let_in_and_refused_by_the_server_is_in_line_again() -> None:
    async def story() -> None:
        world = World(limit=8, jobs=2)
        assert world.may_start("j0")
        world.let_in("j0")
        assert not world.may_start("j1")
        job = world.job("j0", "Queued", reason="QuotaExceeded")
        world.lines.decided(job, starts=None, phase="Queued")
        assert world.may_start("j1"), "its namespace has no room for j0: nobody waits for that"

    asyncio.run(story())


def test_the_head_is_woken_when_a_job_ends_and_the_others_hear_of_it_later() -> None:
    async def story() -> None:
        world = World(limit=8)
        world.job("runs", "Running", attempt=1)
        for number in range(3):
            world.job(f"j{number}", "Queued", at=number)
            assert not world.may_start(f"j{number}")
        await turns()
        world.woken.clear()
        world.job("runs", "Succeeded", attempt=1)
        await turns()
        assert world.woken == ["j0"]
        assert world.may_start("j0")
        world.let_in("j0")
        await turns()
        assert world.woken == ["j0"], "new words for the others come once a second at most"
        await asyncio.sleep(1.2)
        assert sorted(world.woken[1:]) == ["j1", "j2"]

    asyncio.run(story())


def test_between_two_attempts_a_job_keeps_its_share_and_a_raised_limit_lets_more_in() -> None:
    async def story() -> None:
        world = World(limit=8)
        world.job("broken", "Pending", attempt=1, reason="Restarting")
        world.job("next", at=1)
        assert not world.may_start("next")
        assert world.may_start("broken")
        world.queue(16, generation=2)
        await turns()
        assert "next" in world.woken
        assert world.may_start("next")

    asyncio.run(story())
