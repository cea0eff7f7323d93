"""Where the workers of a job hear of new code, and one after another tell how far they are.

Workers ask (their sidecars do: an agent's own port serves reads only) and the answer waits until there is an order.
The next order is given when all workers have answered the last one: prepare; then, when the asker has written the job
down, stop, flip, start, without anybody's laptop.
All change or none. Kept in memory: a board that is lost in the middle leaves workers that hear nothing more and let go.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import Any

import msgspec

from orchestra.sync.errors import Busy, Missing

GO_SECONDS = 60.0
"""How long the asker may take to write the job down."""
START_SECONDS = 120.0
MARGIN = 15.0
HEARD_SECONDS = 60.0
"""A worker that asked longer ago than this is not there."""
_STEP_SECONDS = 600.0
_KEPT_SECONDS = 3600.0
_LET_GO = {"id": "lost", "order": "abort", "generation": 0, "attempt": 0, "snapshot": "", "warm": False, "grace": 0}
Key = tuple[str, str]
"""Namespace and UID of a job."""


class Asked(msgspec.Struct, frozen=True, rename="camel"):
    """New code for a job, as somebody wants it."""

    id: str
    """Chosen by whoever asks: asking twice is asking once."""
    generation: int
    workers: list[str]
    attempt: int = 1
    snapshot: str = ""
    """Empty: only have the successors ready."""
    prepare_seconds: float = 120.0
    grace: float = 30.0


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """What a worker says when it asks."""

    worker: str
    attempt: int = 1
    node: int = 0
    snapshot: str = ""
    """What stands there."""
    seen: str = ""
    """The last order that it heard."""
    answer: dict[str, Any] = {}
    half_way: bool = False
    """It holds its ranks, and waits for the next order."""


class Change(msgspec.Struct, rename="camel"):
    """How far a change of code is."""

    id: str
    generation: int
    state: str = "preparing"
    """`preparing`, `prepared`, `stopping`, `flipping`, `starting`, `reloaded`, `stepped`; `preloaded`, `refused`."""
    message: str = ""
    seconds: dict[str, float] = {}
    step: int | None = None
    saved: bool = False
    cold: dict[str, str] = {}
    late: list[str] = []
    stepped: float | None = None
    """Seconds from the start of the ranks to the first step with the new code."""
    over: bool = False
    """Nothing more will happen."""


class Refused(Exception):
    """Workers that did not answer, or said no."""

    def __init__(self, workers: list[str], message: str) -> None:
        super().__init__(message)
        self.workers = workers


class _Job:
    def __init__(self) -> None:
        self.order: dict[str, Any] = {}
        self.reports: dict[str, tuple[float, Report]] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self.change: Change | None = None
        self.go = False
        self.touched = time.monotonic()


class Board:
    """All jobs of all namespaces. Any thread may call."""

    def __init__(self) -> None:
        self._jobs: dict[Key, _Job] = {}
        self._news = threading.Condition()

    # ---- workers

    def hear(self, key: Key, report: Report, seconds: float) -> dict[str, Any]:
        """A worker's report; answers the order that it has not seen, as soon as there is one, or nothing."""
        with self._news:
            job = self._job(key)
            job.reports[report.worker] = (time.monotonic(), report)
            if report.half_way and not job.order:
                return _LET_GO  # of a change that a store before us had on its way
            if report.answer and report.answer.get("id") == job.order.get("id"):
                job.answers[report.worker] = report.answer
            self._news.notify_all()

            def due() -> bool:
                mine = report.worker in job.order.get("workers", ()) and report.attempt == job.order.get("attempt")
                return mine and job.order["id"] != report.seen

            self._news.wait_for(due, seconds)
            job.reports[report.worker] = (time.monotonic(), report)
            return {name: value for name, value in job.order.items() if name != "workers"} if due() else {}

    def workers(self, key: Key) -> list[Report]:
        """Those that have asked lately."""
        with self._news:
            found = self._jobs.get(key)
            since = time.monotonic() - HEARD_SECONDS
            return [report for when, report in found.reports.values() if when > since] if found else []

    # ---- whoever wants new code

    def ask(self, key: Key, asked: Asked) -> Change:
        """Begins. One change at a time."""
        with self._news:
            job = self._job(key)
            if job.change is not None and job.change.id == asked.id:
                return job.change
            if job.change is not None and not job.change.over and job.change.state not in ("reloaded", "stepped"):
                raise Busy(f"generation {job.change.generation} is on its way ({job.change.state}); wait for it")
            job.change, job.go = Change(asked.id, asked.generation), False
            change = job.change
        threading.Thread(target=self._carry_out, args=(job, change, asked), daemon=True).start()
        return change

    def go(self, key: Key, id: str) -> None:
        """The job is written down: no way back."""
        with self._news:
            job = self._jobs.get(key)
            if job is None or job.change is None or job.change.id != id or job.change.over:
                raise Missing("the change is not on its way any more: the store was restarted, or it took too long")
            job.go = True
            self._news.notify_all()

    def look(self, key: Key, id: str, after: str, seconds: float) -> Change | None:
        """How far it is, as soon as it is no longer `after`. None: this store does not know of it."""
        with self._news:
            job = self._jobs.get(key)

            def found() -> Change | None:
                change = job.change if job is not None else None
                return change if change is not None and change.id == id else None

            def moved() -> bool:
                change = found()
                return change is None or change.over or change.state != after

            self._news.wait_for(moved, seconds)
            return found()

    # ---- within

    def _job(self, key: Key) -> _Job:
        """Under the lock. Jobs that nobody has asked about for long are forgotten."""
        now = time.monotonic()
        if key not in self._jobs:
            for old in [one for one, job in self._jobs.items() if now - job.touched > _KEPT_SECONDS]:
                del self._jobs[old]
        job = self._jobs.setdefault(key, _Job())
        job.touched = now
        return job

    def _carry_out(self, job: _Job, change: Change, asked: Asked) -> None:
        """One change from its beginning to its end, in a thread of its own."""
        with self._news:
            steps = _Steps(self._news, job, change, asked)
            try:
                steps.run()
            except Refused as no:
                change.state, change.message, change.late = "refused", str(no), no.workers
                steps.order("abort")
            finally:
                change.over = True
                self._news.notify_all()


class _Steps:
    """The orders of one change. Holds the board's lock but while it waits."""

    def __init__(self, news: threading.Condition, job: _Job, change: Change, asked: Asked) -> None:
        self._news, self._job, self._change, self._asked = news, job, change, asked
        self._since = time.monotonic()

    def run(self) -> None:
        change, asked = self._change, self._asked
        if not asked.snapshot:
            self._cold(self._all("preload", "preloaded", asked.prepare_seconds))
            self._to("preloaded")
            return
        try:
            self._cold(self._all("prepare", "prepared", asked.prepare_seconds))
        except Refused as no:
            raise Refused(no.workers, f"{no}; nobody has changed") from no
        self._lap("stage and acknowledge")
        self._to("prepared")
        if not self._news.wait_for(lambda: self._job.go, GO_SECONDS):
            raise Refused([], "whoever asked for it is gone; nobody has changed")
        self._lap("write down")
        try:
            self._to("stopping")
            stopped = self._all("stop", "stopped", asked.grace + MARGIN)
            self._lap("stop and save")
            steps = {answer.get("step") for answer in stopped}
            change.step = steps.pop() if len(steps) == 1 else None
            change.saved = all(answer.get("saved") for answer in stopped)
            self._to("flipping")
            self._all("flip", "flipped", START_SECONDS)
            self._lap("flip")
            self._to("starting")
            self._all("start", "started", START_SECONDS)
            self._lap("start")
        except Refused as no:
            # Some have stopped for it and cannot go back: the attempt ends, and the next one runs the new code.
            raise Refused(no.workers, f"{no}; the workers are started anew, with the new code") from no
        self._to("reloaded")
        began = time.monotonic()
        if change.step is not None and self._news.wait_for(self._stepped, _STEP_SECONDS):
            change.stepped = time.monotonic() - began
            self._to("stepped")

    def order(self, order: str) -> None:
        """Gives all workers an order."""
        asked = self._asked
        self._job.answers = {}
        self._job.order = {
            "id": secrets.token_hex(8), "order": order, "generation": asked.generation, "attempt": asked.attempt,
            "snapshot": asked.snapshot, "workers": asked.workers, "warm": not self._change.cold,
            "grace": asked.grace,
        }  # fmt: skip
        self._news.notify_all()

    def _all(self, order: str, wanted: str, seconds: float) -> list[dict[str, Any]]:
        """Gives an order and waits for all answers."""
        self.order(order)
        until = time.monotonic() + seconds
        answers = self._job.answers

        def lacking() -> list[str]:
            return [name for name in self._asked.workers if answers.get(name, {}).get("state") != wanted]

        while missing := lacking():
            refusing = [name for name in missing if answers.get(name, {}).get("state") == "failed"]
            if refusing:
                said = "; ".join(f"{name}: {answers[name].get('message')}" for name in refusing)
                raise Refused(refusing, said)
            left = until - time.monotonic()
            if left <= 0:
                silent = ", ".join(f"{name} ({self._heard(name)})" for name in missing)
                raise Refused(missing, f"{silent} did not answer ({order}) within {seconds:g} s")
            self._news.wait(left)
        return [answers[name] for name in self._asked.workers]

    def _heard(self, name: str) -> str:
        when = self._job.reports.get(name)
        return f"last heard {time.monotonic() - when[0]:.0f} s ago" if when else "never heard of"

    def _stepped(self) -> bool:
        return any(answer.get("stepped") for answer in self._job.answers.values())

    def _cold(self, answers: list[dict[str, Any]]) -> None:
        for answer in answers:
            self._change.cold |= answer.get("cold") or {}

    def _lap(self, name: str) -> None:
        now = time.monotonic()
        self._change.seconds = self._change.seconds | {name: now - self._since}
        self._since = now

    def _to(self, state: str) -> None:
        self._change.state = state
        self._news.notify_all()
