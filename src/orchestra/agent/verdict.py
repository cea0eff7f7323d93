"""When a worker is over, and as what. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .failure import Failure
from .ranks import Round

HOPELESS = ("SyntaxError", "FileNotFound", "ImportError")
"""Another round would find the same text, the same files and the same packages: it is not waited for."""

EXIT_CODES = {"done": 0, "stopped": 75, "hang": 76, "failed": 1}


@dataclass(frozen=True)
class Stop:
    """A stop that is under way."""

    reason: str
    deadline: float
    """By the agent's monotonic clock: then everything is ended."""


@dataclass(frozen=True)
class Verdict:
    """How the worker ends."""

    state: str
    """`done`, `stopped`, `failed` or `hang`."""
    failure: Failure | None = None
    message: str = ""


def judge(
    ranks: Round,
    launcher_exit: int | None,
    stop: Stop | None,
    now: float,
    launcher_needed: Callable[[bool], bool],
    launcher_failure: Callable[[], Failure],
    failures_left: int | None = None,
) -> Verdict | None:
    """The verdict, or None while there is something to wait for. The launcher's exit code is the last to be asked.

    `launcher_needed` says whether other nodes still need the launcher of this one, which has finished; it is told
    whether all ranks here have said themselves that they are through. `failures_left` is the budget of an elastic job,
    whose launcher may start as many rounds as it likes: those after the loss of a node are free.
    """
    if ranks.finished(now):
        stopped = any(rank.stopped for rank in ranks.ranks)
        over = launcher_exit is not None or (stop is not None and (not stopped or now >= stop.deadline))
        if not over and launcher_needed(all(rank.result for rank in ranks.ranks)):
            return None
        return Verdict("stopped" if stopped else "done")
    if stop is not None:
        return _judge_stop(ranks, stop, now)
    failure = ranks.failure()
    if launcher_exit is None:
        if failure is None or failure.peer_lost:
            return None
        spent = failures_left is not None and ranks.failures >= failures_left
        return Verdict("failed", failure) if spent or failure.reason in HOPELESS else None
    if failure is None and launcher_exit == 0:
        return Verdict("done")
    return Verdict("failed", failure or launcher_failure())


def _judge_stop(ranks: Round, stop: Stop, now: float) -> Verdict | None:
    running = ranks.running()
    if not running:
        return Verdict("stopped", ranks.failure())  # one that failed now may have failed to save
    if now < stop.deadline:
        return None
    listed = ", ".join(str(rank.rank) for rank in running)
    return Verdict("stopped", None, f"rank {listed} did not stop within the grace period and was ended")
