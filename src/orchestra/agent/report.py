"""What the agent shows of itself while it runs: `/progress` and `/metrics`."""

from __future__ import annotations

import json
from typing import Any

from .ranks import Round

_GAUGES = (
    ("step", "orchestra_step", "Last step reported by the rank."),
    ("totalSteps", "orchestra_total_steps", "Steps the rank expects to make."),
    ("epoch", "orchestra_epoch", "Epoch reported by the rank."),
    ("loss", "orchestra_loss", "Last loss reported by the rank."),
    ("tokensPerSecond", "orchestra_tokens_per_second", "Throughput reported by the rank."),
    ("stepSeconds", "orchestra_step_seconds", "Median seconds a step, as the rank measured it."),
    ("etaSeconds", "orchestra_eta_seconds", "Seconds to the end, as the rank expects."),
    ("checkpointStep", "orchestra_checkpoint_step", "Step of the last checkpoint."),
    ("goodput", "orchestra_goodput", "Share of the time spent on steps that count."),
)


def progress_report(
    state: str, node: int, attempt: int, ranks: Round, failure: dict[str, Any] | None, now: float
) -> dict[str, Any]:
    """`/progress`. `progress` is that of the lowest rank here that reports."""
    shown = {}
    for rank in ranks.ranks:
        shown[str(rank.rank)] = {
            "localRank": rank.local_rank,
            "pid": rank.main_pid,
            "state": rank.how,
            "exitCode": rank.exit,
            "quietSeconds": round(max(0.0, now - rank.watch.since), 1),
            "progress": rank.watch.progress or None,
            "result": rank.result,
        }
    lowest = next((rank.watch.progress for rank in ranks.ranks if rank.watch.progress), None)
    last = ranks.last_failure
    return {
        "state": state,
        "node": node,
        "attempt": attempt,
        "restarts": ranks.restarts,
        "ranks": shown,
        "progress": lowest,
        "failure": failure or (last.as_json() if last else None),
    }


class ProgressLines:
    """The report as a line of the log now and then: for whoever can read logs and not reach this port."""

    def __init__(self, seconds: float = 30.0) -> None:
        """At most one line in so many seconds."""
        self._seconds, self._next, self._last = seconds, 0.0, ""

    def due(self, report: dict[str, Any], now: float) -> str | None:
        """The line to write now, if any."""
        progress = report.get("progress")
        if not progress or now < self._next:
            return None
        kept = {name: value for name, value in progress.items() if isinstance(value, (int, float)) and name != "time"}
        line = "progress " + json.dumps(kept, sort_keys=True)
        if line == self._last:
            return None
        self._next, self._last = now + self._seconds, line
        return line


def metrics(report: dict[str, Any], job: str, log_lines: int, log_lost: int) -> str:
    """`/metrics`, in Prometheus' text format."""
    common = [("job_name", job), ("node", str(report["node"]))]
    lines: list[str] = []
    _metric(lines, "orchestra_agent_info", "gauge", "The agent's state.", [([*common, ("state", report["state"])], 1)])
    _metric(lines, "orchestra_attempt", "gauge", "Attempt, from 1.", [(common, report["attempt"])])
    _metric(lines, "orchestra_restarts_total", "counter", "Restarts in place.", [(common, report["restarts"])])
    _metric(lines, "orchestra_log_lines_total", "counter", "Lines logged.", [(common, log_lines)])
    _metric(lines, "orchestra_log_lost_lines_total", "counter", "Lines the disk refused.", [(common, log_lost)])
    ranks = [([*common, ("rank", rank)], shown) for rank, shown in report["ranks"].items()]
    running = [(labels, int(shown["state"] == "running")) for labels, shown in ranks]
    _metric(lines, "orchestra_rank_running", "gauge", "Whether the rank runs.", running)
    quiet = [(labels, shown["quietSeconds"]) for labels, shown in ranks]
    _metric(lines, "orchestra_rank_quiet_seconds", "gauge", "Seconds since the rank's last sign of life.", quiet)
    for field, name, text in _GAUGES:
        values = [(labels, (shown["progress"] or {}).get(field)) for labels, shown in ranks]
        _metric(lines, name, "gauge", text, values)
    return "\n".join(lines) + "\n"


def _metric(lines: list[str], name: str, kind: str, text: str, values: list[tuple[list[tuple[str, str]], Any]]) -> None:
    known = [(labels, value) for labels, value in values if isinstance(value, (int, float))]
    if not known:
        return
    lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in known:
        # A JSON string escapes what a label must escape: quotes, backslashes, newlines.
        lines.append(f"{name}{{{','.join(f'{key}={json.dumps(label)}' for key, label in labels)}}} {value}")
