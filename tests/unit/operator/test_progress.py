"""What of a job's progress is worth a status write."""

from __future__ import annotations

import asyncio
import unittest.mock

import aiohttp
from aiohttp import web
from aiohttp.test_utils import unused_port

from orchestra.api.job import Progress
from orchestra.kube.objects import Metadata, OwnerReference
from orchestra.kube.pods import PodStatus
from orchestra.operator import names
from orchestra.operator.kinds import PodObject
from orchestra.operator.progress import ProgressBoard, addresses


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def board(clock: Clock, told: list[str]) -> ProgressBoard:
    return ProgressBoard(dict, told.append, every=10.0, clock=clock)


def test_a_first_word_and_a_checkpoint_are_news_at_once_and_steps_only_now_and_then() -> None:
    clock = Clock()
    told: list[str] = []
    made = board(clock, told)
    for second in range(60):
        clock.now = float(second)
        made.heard("job", Progress(step=second, checkpoint_step=40 if second >= 40 else None))
    assert len(told) == 3, "the first word, after 30 s, the checkpoint"
    latest = made.progress("job")
    assert latest is not None
    assert latest.step == 59, "the latest word is known all the same"


def test_steps_of_a_thousand_jobs_are_twenty_writes_a_second() -> None:
    clock = Clock()
    told: list[str] = []
    made = board(clock, told)
    for number in range(1000):
        made.heard(f"job-{number}", Progress(step=1))
    assert len(told) == 1000, "each job's first word"
    told.clear()
    for second in range(30, 90, 5):
        clock.now = float(second)
        for number in range(1000):
            clock.now += 0.005
            made.heard(f"job-{number}", Progress(step=second))
    assert 1000 <= len(told) <= 60 * 20 + 20
    assert len(set(told)) == 1000, "nobody is forgotten"


def test_a_job_that_is_gone_is_forgotten() -> None:
    clock = Clock()
    told: list[str] = []
    made = board(clock, told)
    made.heard("job", Progress(step=1))
    made.forget("job")
    assert made.progress("job") is None
    made.heard("job", Progress(step=1))
    assert told == ["job", "job"]


def a_pod(index: int, attempt: int, address: str) -> PodObject:
    owner = OwnerReference(
        api_version="torchrun.ai/v1alpha1", kind="TorchrunJob", name="job", uid="uid", controller=True
    )
    labels = {"torchrun.ai/attempt": str(attempt), "torchrun-node-index": str(index)}
    meta = Metadata(name=f"job-{index}-r{attempt}", uid=address, labels=labels, owner_references=(owner,))
    return PodObject(metadata=meta, status=PodStatus(phase="Running", pod_ip=address))


def test_only_the_newest_attempt_is_asked_the_first_index_first() -> None:
    pods = [a_pod(0, 1, "old"), a_pod(3, 2, "third"), a_pod(1, 2, "first"), a_pod(2, 2, "")]
    assert addresses(pods) == {"uid": ["first", "third"]}
    assert addresses([a_pod(0, 1, "")]) == {}


def test_restarts_in_place_are_those_of_the_attempt_that_is_asked_about() -> None:
    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"attempt": 2, "restarts": 1, "ranks": {"0": {}}, "progress": {"step": 5}})

    async def run() -> None:
        made = board(Clock(), [])
        port = unused_port()
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        with unittest.mock.patch.object(names, "AGENT_PORT", port):
            async with aiohttp.ClientSession() as session:
                await made.ask(session, "job", ["127.0.0.1"])
        await runner.cleanup()
        assert [made.in_place("job", attempt) for attempt in (None, 1, 2, 3)] == [0, 0, 1, 0]
        made.forget("job")
        assert made.in_place("job", 2) == 0

    asyncio.run(run())
