"""New code for a running job: staged, acknowledged by every worker, then changed in all of them or in none."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from orchestra.agent.reload import ANSWER, ORDER
from orchestra.api.base import Model
from orchestra.api.job import TorchrunJob, Workspace
from orchestra.api.reloaded import Reloaded
from orchestra.local.agents import Agent, Agents
from orchestra.local.code import Codes
from orchestra.local.home import JobFolder
from orchestra.sync.apply import flip
from orchestra.sync.errors import SyncError

_TICK = 0.02
PREPARE_SECONDS = 120.0  # a first import of torch on a busy machine
_START_SECONDS = 120.0
_MARGIN = 15.0
_ALL = 1_000_000


class Request(Model, kw_only=True):
    """What the supervisor of a running job is asked for."""

    generation: int
    snapshot: str = ""
    """Empty: only have the successors ready."""
    annotations: dict[str, str] = {}
    full: bool = False
    """Restart everything: what the environment is made of has changed."""
    prepare_seconds: float = PREPARE_SECONDS

    def on(self, job: TorchrunJob) -> TorchrunJob:
        """The job on the new snapshot."""
        workspace = msgspec.structs.replace(job.spec.workspace or Workspace(), snapshot=self.snapshot)
        annotations = {**job.metadata.annotations, **self.annotations}
        return msgspec.structs.replace(
            job,
            metadata=msgspec.structs.replace(job.metadata, annotations=annotations),
            spec=msgspec.structs.replace(job.spec, workspace=workspace),
        )


def read_request(folder: JobFolder, after: int) -> Request | None:
    """The request that waits, if there is one newer than `after`."""
    try:
        request = msgspec.json.decode((folder.reload / "request.json").read_bytes(), type=Request)
    except (OSError, msgspec.MsgspecError):
        return None
    return request if request.generation > after else None


def write_request(folder: JobFolder, request: Request) -> None:
    """Asks the supervisor."""
    folder.reload.mkdir(parents=True, exist_ok=True)
    _replace(folder.reload / "request.json", msgspec.json.encode(request))


def read_answer(folder: JobFolder, generation: int) -> Reloaded | None:
    """What the supervisor answered to a request."""
    try:
        return msgspec.json.decode((folder.reload / f"answer-{generation}").read_bytes(), type=Reloaded)
    except (OSError, msgspec.MsgspecError):
        return None


def write_answer(folder: JobFolder, answer: Reloaded) -> None:
    """The supervisor's answer."""
    folder.reload.mkdir(parents=True, exist_ok=True)
    _replace(folder.reload / f"answer-{answer.generation}", msgspec.json.encode(answer))


def answered_generation(folder: JobFolder) -> int:
    """The highest number that was ever answered."""
    return max((int(file.name[7:]) for file in folder.reload.glob("answer-*")), default=0)


def newest_generation(folder: JobFolder) -> int:
    """The highest number that a request ever had."""
    request = read_request(folder, -1)
    return request.generation if request else 0


def first_report(node: Path) -> float | None:
    """When rank 0 reported a step, if it has since its start: the shim has removed what was there before."""
    try:
        told = json.loads((node / "ranks" / "0" / "progress.json").read_bytes())
        return float(told["time"]) if told.get("step") is not None else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Late(Exception):
    """Workers that did not answer in time, or refused."""

    def __init__(self, nodes: list[int], message: str) -> None:
        super().__init__(message)
        self.nodes = nodes


class Reload:
    """One change of code, in all agents of an attempt."""

    def __init__(self, agents: Agents, request: Request, grace: float, still: Callable[[], bool]) -> None:
        """`still` says whether the job is to go on; a stop that is asked for meanwhile comes first."""
        self._agents, self._request, self._grace, self._still = agents, request, grace, still
        self._seconds: dict[str, float] = {}
        self._since = time.monotonic()
        self._cold: dict[str, str] = {}

    def preload(self) -> Reloaded:
        """Only have the successors ready."""
        try:
            answers = self._order("preload", "preloaded", self._request.prepare_seconds)
        except Late as late:
            return self._refused(str(late), late.nodes)
        for answer in answers:
            self._cold |= answer.get("cold") or {}
        return Reloaded(generation=self._request.generation, state="preloaded", cold=self._cold)

    def carry_out(self, codes: Codes, folder: JobFolder, users: Path) -> Reloaded:
        """What the request asks for, as far as it can be done; the answer tells."""
        if self._request.full:
            message = "what the environment is made of has changed: all workers are started anew"
            return Reloaded(generation=self._request.generation, state="restarted", message=message)
        if not self._request.snapshot:
            return self.preload()
        try:
            return self._run(codes, folder, users)
        except (OSError, SyncError) as error:
            self._write("abort", self._agents.running())
            return self._refused(str(error), [])

    def _run(self, codes: Codes, folder: JobFolder, users: Path) -> Reloaded:
        staged = codes.prepare(self._request.snapshot, folder, users)
        self._lap("stage")
        where = str(staged.tree)
        try:
            answers = self._order("prepare", "prepared", self._request.prepare_seconds, workingDir=where)
        except Late as late:
            self._write("abort", self._agents.running())
            return self._refused(f"{late}; nobody has changed", late.nodes)
        for answer in answers:
            self._cold |= answer.get("cold") or {}
        self._lap("acknowledge")
        try:
            stopped = self._order("stop", "stopped", self._grace + _MARGIN, workingDir=where)
            self._lap("stop and save")
            codes.bring_home(folder, users)
            codes.link_home(staged.tree, folder, users)
            flip(folder.code, staged, keep=_ALL)
            self._lap("flip")
            started = self._order("start", "started", _START_SECONDS, workingDir=where, warm=not self._cold)
        except Late as late:
            # Some have stopped for it and cannot go back: the attempt ends, and the next one runs on what is current.
            self._write("abort", self._agents.running())
            return self._refused(f"{late}; the workers are started anew", late.nodes)
        self._lap("start")
        steps = {answer.get("step") for answer in stopped}
        return Reloaded(
            generation=self._request.generation,
            state="reloaded",
            seconds=self._seconds,
            step=steps.pop() if len(steps) == 1 else None,
            saved=all(answer.get("saved") for answer in stopped),
            cold=self._cold,
            message="" if started else "no worker runs",
        )

    def _refused(self, message: str, late: list[int]) -> Reloaded:
        return Reloaded(
            generation=self._request.generation,
            state="refused",
            message=message,
            seconds=self._seconds,
            late=[str(node) for node in late],
        )

    def _lap(self, name: str) -> None:
        now = time.monotonic()
        self._seconds[name], self._since = now - self._since, now

    def _write(self, order: str, agents: list[Agent], **more: Any) -> None:
        for agent in agents:
            told = {"generation": self._request.generation, "order": order, "attempt": self._agents.attempt, **more}
            _replace(agent.folder / ORDER, json.dumps(told).encode())

    def _order(self, order: str, wanted: str, seconds: float, **more: Any) -> list[dict[str, Any]]:
        """Gives all workers an order and waits for all their answers."""
        agents = list(self._agents.members)
        self._write(order, agents, **more)
        until = time.monotonic() + seconds
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < len(agents):
            for agent in agents:
                answer = _answer(agent.folder)
                if answer.get("generation") != self._request.generation or answer.get("pid") != agent.process.pid:
                    continue
                if answer.get("state") == "failed":
                    raise Late([agent.index], f"node {agent.index}: {answer.get('message')}")
                if answer.get("order") == order and answer.get("state") == wanted:
                    answers[agent.index] = answer
            lacking = [agent.index for agent in agents if agent.index not in answers]
            gone = [agent.index for agent in agents if agent.process.poll() is not None]
            named = ", ".join(map(str, gone or lacking))
            if gone:
                raise Late(gone, f"node {named} has ended")
            if lacking and time.monotonic() > until:
                raise Late(lacking, f"node {named} did not answer ({order}) within {seconds:g} s")
            if lacking and not self._still():
                raise Late(lacking, "the job is being stopped")
            if lacking:
                time.sleep(_TICK)
        return [answers[agent.index] for agent in agents]


def _answer(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / ANSWER).read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)
