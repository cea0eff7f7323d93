"""How an attempt ended, from what its agents left behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from orchestra.api.base import Model
from orchestra.api.job import Failure

State = Literal["done", "stopped", "failed", "hang", "lost"]


class RankFailure(Model):
    """The first failing rank of a node, as its agent tells it."""

    rank: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    reason: str = "Unknown"
    message: str = ""
    lines: list[str] = []
    time: float | None = None
    peer_lost: bool = False
    """It fell because another one was gone: not the culprit if any other is to be had."""


class AgentResult(Model):
    """An agent's last word."""

    state: State
    exit_code: int | None = None
    step: int | None = None
    checkpoint: str | None = None
    restarts: int = 0
    failure: RankFailure | None = None
    attempt: int | None = None
    progress: dict[str, Any] | None = None
    """The lowest rank's last report."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended, all nodes taken together."""

    state: State
    restarts: int = 0
    """In-place restarts: rounds, not summed over nodes."""
    step: int | None = None
    checkpoint: str | None = None
    failure: Failure | None = None


def read_result(folder: Path, attempt: int) -> AgentResult | None:
    """An agent's result of this attempt; None when it left none."""
    try:
        result = msgspec.json.decode((folder / "result.json").read_bytes(), type=AgentResult)
    except (OSError, msgspec.DecodeError):
        return None
    return result if result.attempt in (None, attempt) else None


def outcome_of(results: dict[int, AgentResult | None]) -> Outcome:
    """One verdict from all nodes (by index). A node without a word is lost; a failure outweighs a stop."""
    known = {node: result for node, result in results.items() if result is not None}
    restarts = max((result.restarts for result in known.values()), default=0)
    failed = [(node, result) for node, result in known.items() if result.state in ("failed", "hang")]
    followed = all(result.failure is not None and result.failure.peer_lost for _, result in failed)
    if failed and not (followed and len(known) < len(results)):  # who only fell with a lost node is not to blame
        node, first = min(failed, key=lambda item: _failed_at(item[1]))
        state: State = "hang" if first.state == "hang" else "failed"
        return Outcome(state, restarts, failure=_failure(node, first))
    if len(known) < len(results):
        missing = sorted(set(results) - set(known))
        names = ", ".join(map(str, missing))
        lost = Failure(reason="NodeLost", message=f"the agent of node {names} ended without a word (killed?)")
        return Outcome("lost", restarts, failure=lost)
    if all(result.state == "done" for result in known.values()):
        return Outcome("done", restarts, *_saved(known))
    return Outcome("stopped", restarts, *_saved(known))


def _saved(results: dict[int, AgentResult]) -> tuple[int | None, str | None]:
    steps = [result.step for result in results.values() if result.step is not None]
    checkpoint = next((result.checkpoint for result in results.values() if result.checkpoint), None)
    return (max(steps) if steps else None), checkpoint


def _failed_at(result: AgentResult) -> tuple[bool, bool, float]:
    """A rank's failure comes before a launcher's, and both before one that only lost its peer; then the earliest."""
    failure = result.failure
    if failure is None:
        return True, True, float("inf")
    return failure.peer_lost, failure.rank is None, failure.time or float("inf")


def _failure(node: int, result: AgentResult) -> Failure:
    told = result.failure
    if told is None:
        return Failure(pod=str(node), exit_code=result.exit_code, reason="Failed", message="no rank told why")
    message = "\n".join([told.message, *told.lines]).strip()
    return Failure(rank=told.rank, pod=str(node), exit_code=told.exit_code, reason=told.reason, message=message[:32000])
