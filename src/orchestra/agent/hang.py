"""Whether the ranks of this node hang, and who is missing. Pure: time is an argument."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .tracebacks import Frame, in_collective

LEAST_SECONDS = 300.0
STEPS = 20
PHASE_SECONDS = 1800.0
"""Limit of an announced phase that names none."""
_ANNOUNCED = ("compile", "eval", "save", "load", "init")
_LIFE = ("step", "epoch", "phase", "collective", "checkpointStep")
# A rank that waits in a collective still wakes a thread now and then. Below this share of a core it does nothing.
_IDLE_SHARE = 0.01


@dataclass
class Watch:
    """What one rank has shown of itself. Times are the agent's own, never the rank's."""

    since: float
    """Of the last sign of life."""
    reported: tuple[Any, ...] | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    step_seen: tuple[float, float] | None = None
    cpu: tuple[float, float] | None = None

    @property
    def steps(self) -> bool:
        """Whether it has reported a step."""
        return self.progress.get("step") is not None

    def report(self, progress: dict[str, Any], now: float) -> None:
        """The rank's progress file, as it stands now."""
        seen = tuple(progress.get(name) for name in _LIFE)
        if seen == self.reported:
            self.progress = progress
            return
        step = progress.get("step")
        if isinstance(step, (int, float)):
            if self.step_seen is not None and step > self.step_seen[1]:
                self.step_seconds.append((now - self.step_seen[0]) / (step - self.step_seen[1]))
            if self.step_seen is None or step != self.step_seen[1]:
                self.step_seen = (now, step)
        self.progress, self.reported, self.since = progress, seen, now

    def output(self, now: float) -> None:
        """It wrote something: life only for a rank that does not report."""
        if not self.steps:
            self.since = max(self.since, now)

    def used_cpu(self, seconds: float, now: float) -> None:
        """CPU time of its processes so far: life only for a rank that does not report."""
        if self.cpu is not None:
            share = abs(seconds - self.cpu[1]) / max(now - self.cpu[0], 0.001)
            if share > _IDLE_SHARE and not self.steps:
                self.since = now
        self.cpu = (now, seconds)


def limit(watch: Watch, timeout: float | None) -> float | None:
    """Seconds without life that this rank is allowed; None: any number."""
    phase = watch.progress.get("phase")
    if phase in _ANNOUNCED:
        given = _number(watch.progress.get("phaseLimitSeconds"))
        if given is not None:
            return given
        if watch.steps or (timeout is not None and phase != "init"):
            return max(PHASE_SECONDS, timeout or 0.0)
    if timeout is not None:
        return timeout
    if not watch.steps:
        return None
    own = _number(watch.progress.get("stepSeconds"))
    if own is None:
        own = statistics.median(watch.step_seconds) if watch.step_seconds else 0.0
    return max(LEAST_SECONDS, STEPS * own)


def silence(watches: Mapping[int, Watch], timeout: float | None, now: float) -> float | None:
    """For how long this node has hung, or None.

    A node hangs when every running rank has outlasted its limit: while one of them is in an announced phase, or still
    steps, the others may well be waiting for it.
    """
    # Where some report, the silence of the others says nothing: often only one rank reports for all.
    reporting = [watch for watch in watches.values() if watch.progress]
    quiet = []
    for watch in reporting or watches.values():
        allowed = limit(watch, timeout)
        if allowed is None or now - watch.since <= allowed:
            return None
        quiet.append(now - watch.since)
    return min(quiet) if quiet else None


@dataclass(frozen=True)
class Hang:
    """The finding."""

    missing: list[int]
    waiting: list[int]
    message: str


def find_missing(watches: Mapping[int, Watch], stacks: Mapping[int, Sequence[Frame]], seconds: float) -> Hang:
    """Who the others wait for: the ranks behind at a numbered point, else those whose stack is in no collective."""
    ranks = sorted(watches)
    quiet = f"no progress for {seconds:.0f} s"
    for name in ("collective", "step"):
        points = {rank: _number(watches[rank].progress.get(name)) for rank in ranks}
        known = [point for point in points.values() if point is not None]
        if len(known) == len(ranks) and min(known) < max(known):
            missing = [rank for rank in ranks if points[rank] == min(known)]
            waiting = [rank for rank in ranks if rank not in missing]
            where = f"{name} {int(max(known))} (reached {int(min(known))})"
            return Hang(missing, waiting, f"{quiet}: {_missing_text(missing, waiting, where, stacks)}")
    waiting = [rank for rank in ranks if in_collective(stacks.get(rank, ()))]
    missing = [rank for rank in ranks if rank not in waiting and stacks.get(rank)]
    if waiting and missing:
        return Hang(missing, waiting, f"{quiet}: {_missing_text(missing, waiting, 'a collective', stacks)}")
    if waiting == ranks:
        return Hang([], waiting, f"{quiet}: all ranks of this node wait in a collective for one of another node")
    if len(ranks) == 1 and missing:
        return Hang(missing, [], f"{quiet}: rank {ranks[0]} is in {stacks[ranks[0]][0]}")
    return Hang([], [], f"{quiet}; which rank the others wait for is not known")


def _missing_text(missing: list[int], waiting: list[int], where: str, stacks: Mapping[int, Sequence[Frame]]) -> str:
    text = f"{_ranks(missing)} missing from {where}; {_ranks(waiting)} waiting"
    stack = stacks.get(missing[0])
    return f"{text}; rank {missing[0]} is in {stack[0]}" if stack else text


def _ranks(ranks: list[int]) -> str:
    listed = ", ".join(str(rank) for rank in ranks[:16]) + (" ..." if len(ranks) > 16 else "")
    return f"rank {listed} is" if len(ranks) == 1 else f"ranks {listed} are"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
