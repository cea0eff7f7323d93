"""Progress for the agent: one small file, replaced at most once a second and on each change of phase."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from orchestra.train import environment
from orchestra.train.durable import replace_json

Phase = Literal["init", "train", "compile", "eval", "save", "load"]

_log = logging.getLogger("orchestra.train")
_STEPS_REMEMBERED = 64


def progress(
    *,
    step: int | None = None,
    total_steps: int | None = None,
    epoch: float | None = None,
    loss: float | None = None,
    tokens_per_second: float | None = None,
    checkpoint_step: int | None = None,
    goodput: float | None = None,
    mfu: float | None = None,
    first_stall_seconds: float | None = None,
    stall_seconds: float | None = None,
) -> None:
    """Tell the agent how far training is. What is not given keeps its last value.

    Costs a few microseconds and never raises for want of a disk: a thread writes the file, at most once a second,
    and the last report always gets there. Does nothing without ORCHESTRA_PROGRESS_FILE.
    """
    reporter().report(
        step=step,
        totalSteps=total_steps,
        epoch=epoch,
        loss=loss,
        tokensPerSecond=tokens_per_second,
        checkpointStep=checkpoint_step,
        goodput=goodput,
        mfu=mfu,
        firstStallSeconds=first_stall_seconds,
        stallSeconds=stall_seconds,
    )


@contextlib.contextmanager
def phase(name: Phase, limit: float) -> Iterator[None]:
    """Announce work that is no step and may take up to `limit` seconds before it counts as a hang."""
    reporter().enter(name, limit)
    try:
        yield
    finally:
        reporter().leave()


def collective() -> None:
    """Announce a collective that all ranks enter equally often, right before entering it.

    The agent names the rank with the lowest count as the one that the others wait for.
    """
    reporter().collective()


class Reporter:
    """Progress of one rank, in one file (or nowhere)."""

    def __init__(self, path: Path | None, interval: float = 1.0) -> None:
        self._path = path
        self._interval = interval
        self._fields: dict[str, int | float] = {}
        self._phases: list[tuple[Phase, float | None]] = [("init", None)]
        self._steps = _StepTimes()
        self._collectives = 0
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._writer: threading.Thread | None = None
        self._warned = False

    def report(self, **fields: int | float | None) -> None:
        """Merge the fields into what is known."""
        if self._path is None:
            return
        with self._lock:
            self._fields.update({name: value for name, value in fields.items() if value is not None})
            if fields.get("step") is not None:
                self._steps.passed(int(self._fields["step"]), time.monotonic())
                self._phases[0] = ("train", None)
        self._write_soon()

    def step_seconds(self) -> float | None:
        """The median step, if any was reported."""
        with self._lock:
            return self._steps.median()

    def collective(self) -> None:
        """Count one more collective entered."""
        if self._path is None:
            return
        with self._lock:
            self._collectives += 1
        self._write_soon()

    def enter(self, name: Phase, limit: float | None) -> None:
        """Begin a phase, which may lie within another."""
        if self._path is None:
            return
        with self._lock:
            self._phases.append((name, limit))
        self.flush()

    def leave(self) -> None:
        """Return to the phase before."""
        if self._path is None:
            return
        with self._lock:
            self._phases.pop()
            self._steps.interrupted()
        self.flush()

    def flush(self) -> None:
        """Write now."""
        if self._path is None:
            return
        with self._lock:
            self._news.clear()
            try:
                replace_json(self._path, self._content())
            except OSError as error:
                # Training goes on without its progress; the agent sees a file that grows old.
                if not self._warned:
                    _log.warning("progress cannot be written to %s: %s", self._path, error)
                self._warned = True

    def _content(self) -> dict[str, object]:
        name, limit = self._phases[-1]
        content: dict[str, object] = {"time": time.time(), "phase": name, "phaseLimitSeconds": limit}
        content |= self._fields
        content["stepSeconds"] = self._steps.median()
        content["etaSeconds"] = self._steps.remaining(self._fields.get("step"), self._fields.get("totalSteps"))
        content["collective"] = self._collectives or None
        # JSON knows no NaN, and a reader should not have to tell null from absent.
        return {name: value for name, value in content.items() if value is not None and _finite(value)}

    def _write_soon(self) -> None:
        self._news.set()
        if self._writer is None:
            # A thread, because a throttled last report would otherwise never be written by a rank that then gets
            # stuck, and the agent would compare an old count of this rank with a new one of another.
            self._writer = threading.Thread(target=self._write_forever, name="orchestra-progress", daemon=True)
            self._writer.start()

    def _write_forever(self) -> None:
        while True:
            self._news.wait()
            self.flush()
            time.sleep(self._interval)


class _StepTimes:
    """How long steps take, from the moments at which they were reported."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_STEPS_REMEMBERED)
        self._last: tuple[int, float] | None = None

    def passed(self, step: int, now: float) -> None:
        if self._last is not None and step > self._last[0]:
            self._seconds.append((now - self._last[1]) / (step - self._last[0]))
        if self._last is None or step != self._last[0]:
            self._last = (step, now)

    def interrupted(self) -> None:
        """What lay between two steps was not a step: the next measurement starts anew."""
        if self._last is not None:
            self._last = (self._last[0], time.monotonic())

    def median(self) -> float | None:
        return statistics.median(self._seconds) if self._seconds else None

    def remaining(self, step: float | None, total: float | None) -> float | None:
        if step is None or total is None or not self._seconds:
            return None
        return max(0.0, total - step) * statistics.fmean(self._seconds)


def _finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


@functools.lru_cache(maxsize=1)
def reporter() -> Reporter:
    """The reporter of this process."""
    return Reporter(environment.progress_file())
