"""Why a job is where it is, from what is known; never a guess. Pure."""

from __future__ import annotations

from orchestra.api.engine import Cause
from orchestra.local.machine import Machine
from orchestra.local.store import Row
from orchestra.plan import status


def causes(row: Row, rows: list[Row], machine: Machine) -> list[Cause]:
    """The reasons, most important first."""
    job = row.record.job
    now = status.status_of(job)
    said = status.phase_condition(job)
    message = said.message if said else ""
    if now.phase == "Queued":
        return [_queued(row, rows, machine)]
    if now.phase == "Failed" and now.failure is not None:
        failure = now.failure
        where = f"rank {failure.rank}" if failure.rank is not None else f"node {failure.pod}"
        code = f", exit code {failure.exit_code}" if failure.exit_code is not None else ""
        text = f"{failure.reason} on {where}{code}: {failure.message or message}"
        return [Cause("rank", text, f"orchestra logs {row.record.name}")]
    if now.phase == "Suspended":
        return [Cause("job", message or "it was suspended", f"orchestra resume {row.record.name}")]
    if now.phase == "Pending":
        return [Cause("job", message or "its supervisor is starting")]
    if now.phase == "Provisioning":
        return [Cause("rank", f"{message}; no rank has started yet (imports and rendezvous take a few seconds)")]
    return [Cause("job", message or f"it is {now.phase}")]


def _queued(row: Row, rows: list[Row], machine: Machine) -> Cause:
    claim = row.claim
    if claim is None:
        return Cause("queue", "it waits for slots")
    what = f"{claim.gpus} GPUs" if claim.gpus else f"{claim.cores} cores"
    total = f"{len(machine.gpus)} GPUs" if claim.gpus else f"{machine.cores} cores"
    line = sorted((r for r in rows if r.claim is not None), key=lambda r: r.queued)
    holding = [r for r in line if r.claim is not None and r.claim.held is not None]
    ahead = [r for r in line if r.claim is not None and r.claim.held is None and r.queued < row.queued]
    held = ", ".join(f"{r.record.name} ({r.claim.gpus or r.claim.cores})" for r in holding if r.claim) or "nobody"
    text = f"it needs {what} of this machine's {total}; held by {held}"
    if ahead:
        text += f"; waiting before it: {', '.join(r.record.name for r in ahead)}"
    first = holding[0].record.name if holding else ahead[0].record.name if ahead else None
    return Cause("queue", text, f"orchestra suspend {first}, or wait" if first else "")
