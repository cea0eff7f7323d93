"""The agent's view of the ranks of this node, round by round."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .failure import Evidence, Failure, explain, first
from .hang import Watch

_TAIL = 80
LINGER_SECONDS = 10.0
"""How long a rank that has written its result may take to exit."""


@dataclass
class Rank:
    """One rank in one round, as its shim tells it."""

    rank: int
    local_rank: int
    round: int
    shim_pid: int
    launcher_pid: int
    local_world_size: int | None
    watch: Watch
    main_pid: int | None = None
    ended: float | None = None
    exit: int | None = None
    how: str = "running"
    """`running`; then `ended`, `notFound` (no such program), `notStarted` (a stop came first) or `lost` (no shim)."""
    cleared: bool = False
    """The launcher ended it because another one failed."""
    stop_requested: bool = False
    error_file: str | None = None
    memory_kill: bool = False
    result: dict[str, Any] | None = None
    result_seen: float = 0.0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL * 2))
    held: bool = False
    """It stopped for new code; its shim waits."""
    generation: int = 0
    preloaded: tuple[bool, str] | None = None
    """Whether its successor is ready, and why not; None while nobody has asked or it is not known yet."""
    running_at: float | None = None
    """When its code began, if a preloader became it."""
    stacks: list[str] | None = None
    """Filled from the moment the agent asked for stacks."""

    @property
    def running(self) -> bool:
        """Whether its shim has not yet reported its end."""
        return self.how == "running"

    def finished(self, now: float) -> bool:
        """Whether nothing more is expected of it. A result counts more than an exit code."""
        if self.result is not None:
            return not self.running or now - self.result_seen > LINGER_SECONDS
        return self.how == "notStarted" or (self.how == "ended" and self.exit == 0)

    @property
    def stopped(self) -> bool:
        """Whether it ended by request."""
        if self.result is not None:
            return self.result.get("state") == "stopped"
        return self.stop_requested or self.how == "notStarted"

    def take_exit(self, record: Mapping[str, Any]) -> None:
        """The shim's last word."""
        self.how, self.exit, self.ended = record["how"], record["exit"], record["ended"]
        self.cleared, self.stop_requested = record["cleared"], record["stopRequested"]
        self.error_file, self.held = record["error"], bool(record.get("held"))

    def take_line(self, stream: str, text: str) -> None:
        """A line of its output."""
        self.lines.append(text)
        if stream == "e":
            self.errors.append(text)
            if self.stacks is not None and len(self.stacks) < 2000:
                self.stacks.append(text)

    def failure(self) -> Failure | None:
        """Why it failed; None if it did not, or fell with another."""
        if self.held:
            return None  # it stopped for new code, however its exit code looks
        if self.running or self.cleared or self.result is not None or self.how == "notStarted" or self.exit == 0:
            return None
        if self.stop_requested and self.exit == -signal.SIGTERM:
            return None  # it was asked to go, and went
        found = explain(
            Evidence(
                exit=self.exit,
                errors=list(self.errors),
                lines=list(self.lines),
                started=self.how != "notFound",
                error_file=self.error_file,
                memory_kill=self.memory_kill,
            )
        )
        return Failure(
            found.reason, found.message, found.lines, self.rank, self.local_rank, self.exit, self.ended, found.peer_lost
        )


class Round:
    """The ranks that the launcher started last.

    torchrun's restart count does not name a round: when nodes join or leave it starts the ranks anew, perhaps with
    other numbers, under the same count. A local rank that comes a second time does.
    """

    def __init__(self, procs: int) -> None:
        """`procs` is expected until a rank says otherwise."""
        self._procs = procs
        self.number = 0
        self.restarts = 0
        self.failures = 0
        """Rounds that a rank of this node ended by a failure of its own; the loss of another node is none."""
        self.by_local_rank: dict[int, Rank] = {}
        self.last_failure: Failure | None = None
        """Of the round before this one."""

    @property
    def ranks(self) -> list[Rank]:
        """By global rank."""
        return sorted(self.by_local_rank.values(), key=lambda rank: rank.rank)

    @property
    def expected(self) -> int:
        """How many ranks this node has."""
        sizes = [rank.local_world_size for rank in self.by_local_rank.values() if rank.local_world_size]
        return max(sizes) if sizes else self._procs

    def join(self, rank: Rank) -> bool:
        """A rank starts. Returns whether it opens a new round."""
        new = rank.local_rank in self.by_local_rank
        if new:
            failure = self.failure()
            self.failures += failure is not None and not failure.peer_lost
            self.last_failure = failure or self.last_failure
            self.by_local_rank = {}
            self.number += 1
        self.by_local_rank[rank.local_rank] = rank
        self.restarts = max(self.restarts, rank.round)
        return new

    def finished(self, now: float) -> bool:
        """Whether every rank of this node is there and finished."""
        ranks = self.by_local_rank.values()
        return len(ranks) >= self.expected and all(rank.finished(now) for rank in ranks)

    def running(self) -> list[Rank]:
        """Those that have not ended."""
        return [rank for rank in self.ranks if rank.running]

    def failure(self) -> Failure | None:
        """The first failing rank of this round."""
        return first([failure for failure in (rank.failure() for rank in self.ranks) if failure is not None])
