"""Jobs for people: a row in a list, a status page, one line of progress."""

from __future__ import annotations

import time

from orchestra.api.engine import Event
from orchestra.api.job import Progress, TorchrunJob, TorchrunJobStatus
from orchestra.cli.terminal import Paint, age, bar, clock, sparkline, table
from orchestra.plan.status import phase_condition, seconds_of

HEADERS = ["NAME", "QUEUE", "GPUS", "NODES", "PHASE", "PROGRESS", "RESTARTS", "AGE"]
WIDE = ["LOSS", "ETA", "CHECKPOINT", "REASON"]


def list_jobs(jobs: list[TorchrunJob], paint: Paint, *, wide: bool, headers: bool, namespaces: bool = False) -> str:
    """One row a job."""
    rows = [_row(job, paint, wide=wide) for job in jobs]
    columns = HEADERS + (WIDE if wide else [])
    if namespaces:
        rows = [[job.metadata.namespace or "", *row] for job, row in zip(jobs, rows, strict=True)]
        columns = ["NAMESPACE", *columns]
    return table(rows, columns, show_headers=headers)


def _row(job: TorchrunJob, paint: Paint, *, wide: bool) -> list[str]:
    status = job.status or TorchrunJobStatus()
    created = seconds_of(job.metadata.creation_timestamp)
    row = [
        job.metadata.name,
        job.spec.job_queue,
        str(status.gpus if status.gpus is not None else ""),
        str(status.nodes or ""),
        paint.phase(status.phase),
        status.progress_text or "",
        str(status.restarts or 0),
        age(time.time() - created if created else None),
    ]
    if wide:
        progress = status.progress or Progress()
        said = phase_condition(job)
        row += [
            f"{progress.loss:.4g}" if progress.loss is not None else "",
            age(progress.eta_seconds) if progress.eta_seconds is not None else "",
            str(progress.checkpoint_step if progress.checkpoint_step is not None else ""),
            said.reason if said else "",
        ]
    return row


def progress_line(progress: Progress, *, columns: int = 24) -> str:
    """`██████░░░░ 120/500 24%  loss 0.31  12.3k tok/s  ETA 2m`."""
    parts = []
    if progress.step is not None and progress.total_steps:
        share = progress.step / progress.total_steps
        parts.append(f"{bar(share, columns)} {progress.step}/{progress.total_steps} {share:.0%}")
    elif progress.step is not None:
        parts.append(f"step {progress.step}")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    if progress.tokens_per_second:
        parts.append(f"{_short(progress.tokens_per_second)} tok/s")
    if progress.eta_seconds is not None and progress.step != progress.total_steps:
        parts.append(f"ETA {age(progress.eta_seconds)}")
    return "  ".join(parts)


def _short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:.0f}"


def status_page(
    job: TorchrunJob, events: list[Event], losses: list[float], places: dict[str, str], paint: Paint
) -> str:
    """Everything about one job on one screen."""
    status = job.status or TorchrunJobStatus()
    said = phase_condition(job)
    since = age(time.time() - (seconds_of(said.last_transition_time) or 0)) if said else ""
    rows = [("phase", f"{paint.phase(status.phase)} for {since}" + (f": {said.message}" if said else ""))]
    if status.nodes:
        rows.append(("size", f"{status.nodes} x {status.procs_per_node} processes, attempt {status.attempt or 0}"))
    if status.progress and progress_line(status.progress):
        rows.append(("progress", progress_line(status.progress)))
    if len(losses) > 1:
        rows.append(("loss", f"{sparkline(losses)}  {losses[0]:.4g} -> {losses[-1]:.4g}"))
    if status.progress and status.progress.checkpoint_step is not None:
        rows.append(("checkpoint", f"step {status.progress.checkpoint_step}"))
    rows.append(("restarts", str(status.restarts or 0)))
    if status.failure is not None:
        rows += _failure_rows(status, paint)
    rows += list(places.items())
    body = "\n".join(f"  {label:<11}{text}" for label, text in rows)
    recent = "\n".join(f"  {event_line(event, paint)}" for event in events[-6:])
    return f"{paint(job.metadata.name, 'bold')} on queue {job.spec.job_queue}\n{body}\nevents\n{recent}"


def _failure_rows(status: TorchrunJobStatus, paint: Paint) -> list[tuple[str, str]]:
    failure = status.failure
    if failure is None:
        return []
    where = f"rank {failure.rank}" if failure.rank is not None else f"node {failure.pod}" if failure.pod else "the job"
    code = f", exit code {failure.exit_code}" if failure.exit_code is not None else ""
    first, *rest = (failure.message or "").splitlines() or [""]
    rows = [("failure", paint(f"{failure.reason} on {where}{code}: {first}", "red"))]
    return rows + [("", line) for line in rest[-12:]]


def event_line(event: Event, paint: Paint) -> str:
    """One event."""
    kind = paint(event.type, "yellow" if event.type == "Warning" else "grey")
    return f"{clock(event.time)} {kind:<7} {event.reason}: {event.message}"
