"""The worker's result, for the engine."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from .ranks import Rank, Round
from .verdict import EXIT_CODES, Verdict

TERMINATION_LOG_BYTES = 4096


def build_result(
    verdict: Verdict,
    ranks: Round,
    attempt: int,
    node: int,
    reason: str | None,
    hang: dict[str, Any] | None,
    own_failures: bool = False,
) -> dict[str, Any]:
    """The object of docs/worker-contract.md. `own_failures`: restarts after the loss of other nodes do not count."""
    return {
        "state": verdict.state,
        "exitCode": EXIT_CODES[verdict.state],
        "attempt": attempt,
        "node": node,
        "step": _last_step(ranks.ranks),
        "checkpoint": _checkpoint(ranks.ranks),
        "restarts": ranks.failures if own_failures else ranks.restarts,
        "reason": reason,
        "message": verdict.message or None,
        "failure": verdict.failure.as_json() if verdict.failure else None,
        "hang": hang,
        "progress": next((rank.watch.progress for rank in ranks.ranks if rank.watch.progress), None),
    }


def shortened(result: dict[str, Any], limit: int = TERMINATION_LOG_BYTES) -> bytes:
    """The result in at most `limit` bytes: the oldest lines go first, then the ends of long texts."""
    data = json.loads(json.dumps(result))
    failure = data.get("failure")
    while len(json.dumps(data).encode()) > limit and failure and failure["lines"]:
        del failure["lines"][0]
    for holder in (failure or {}, data, data.get("hang") or {}):
        text = holder.get("message")
        if text and len(json.dumps(data).encode()) > limit:
            holder["message"] = text[:500] + " …"
    encoded = json.dumps(data).encode()
    if len(encoded) > limit:
        kept = {name: data[name] for name in ("state", "exitCode", "attempt", "node", "step", "restarts")}
        encoded = json.dumps(kept).encode()
    return encoded


def write_termination_log(path: Path, result: dict[str, Any]) -> None:
    """In place: a pod's termination log is a mounted file and cannot be replaced."""
    with contextlib.suppress(OSError):
        path.write_bytes(shortened(result))


def _last_step(ranks: list[Rank]) -> int | None:
    for rank in ranks:
        for source in (rank.result or {}, rank.watch.progress):
            if isinstance(source.get("step"), int):
                return int(source["step"])
    return None


def _checkpoint(ranks: list[Rank]) -> str | None:
    return next((rank.result["checkpoint"] for rank in ranks if rank.result and rank.result.get("checkpoint")), None)
