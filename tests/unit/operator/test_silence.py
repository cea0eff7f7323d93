"""Agents that cannot be reached: said so, and their log is read."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web

from operator_parts import NOW, a_pod, job, seen
from orchestra.agent.report import ProgressLines
from orchestra.api.job import Progress
from orchestra.operator import names
from orchestra.operator.decide import decide
from orchestra.operator.progress import ProgressBoard
from orchestra.operator.silences import AVAILABLE, last_progress
from orchestra.plan import status
from testbed.ports import free_port


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_agent_that_cannot_be_reached_is_said_so_and_its_log_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(names, "AGENT_PORT", port)
    clock, news = Clock(), list[str]()

    async def log(uid: str) -> bytes:
        assert uid == "u"
        return b'[rank 0] loss 1\n[agent] progress {"step": 3}\n[agent] progress {"step": 7, "loss": 0.5}\n[rank 0] x\n'

    async def serve(_: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"progress": {"step": 9}})

    async def run() -> None:
        board = ProgressBoard(dict, news.append, read_log=log, clock=clock)
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                await board.ask(session, "u", ["127.0.0.1"])
            assert board.silence("u") is None, "a pod that starts does not listen yet"
            await board.ask(session, "u", ["127.0.0.1"])
            assert "does not answer" in (board.silence("u") or "")
            assert board.progress("u") == Progress(step=7, loss=0.5)
            runner = web.ServerRunner(web.Server(serve))
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            await board.ask(session, "u", ["127.0.0.1"])
            assert board.silence("u") is None
            assert board.progress("u") == Progress(step=9)
            await runner.cleanup()
        board.forget("u")
        assert board.progress("u") is None

    asyncio.run(run())
    assert len(news) >= 3


def test_silence_is_a_condition_and_never_a_hang() -> None:
    quiet = replace(seen(job("Running", 1), a_pod(0), a_pod(1)), progress_silence="the agent does not answer")
    made = decide(quiet, NOW + 100_000)
    said = next(c for c in made.status.conditions if c.type == AVAILABLE)
    assert (made.status.phase, made.delete, said.status, said.reason) == ("Running", (), "False", "Unreachable")
    heard = seen(status.with_status(job("Running", 1), conditions=made.status.conditions), a_pod(0), a_pod(1))
    again = next(c for c in decide(heard, NOW).status.conditions if c.type == AVAILABLE)
    assert again.status == "True"
    usual = decide(seen(job("Running", 1), a_pod(0), a_pod(1)), NOW)
    assert not any(c.type == AVAILABLE for c in usual.status.conditions), "nothing is said where all is well"


def test_what_the_agent_writes_is_what_the_operator_reads() -> None:
    lines = ProgressLines()
    report = {"progress": {"step": 4, "loss": 0.25, "time": 1.0, "phase": "train"}}
    line = lines.due(report, 0.0)
    assert last_progress(f"[rank 1] x\n[agent] {line}\n".encode()) == Progress(step=4, loss=0.25)
    assert lines.due({"progress": {"step": 5}}, 10.0) is None, "one in 30 seconds"
    assert lines.due({"progress": {"step": 5}}, 31.0)
    assert lines.due({"progress": {"step": 5}}, 99.0) is None, "and only news"
