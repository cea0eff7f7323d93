"""The truth about jobs whose supervisor is gone: found at the next command, said, and nothing left running."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

import msgspec

from orchestra.api.engine import Event
from orchestra.local.home import Home, JobFolder
from orchestra.local.store import Row, Store
from orchestra.local.submitted_code import forget_code
from orchestra.plan import status

_STARTING = 15.0  # a supervisor that was just started may not have its lock yet


def supervised(folder: JobFolder) -> bool:
    """Whether the job's supervisor lives: it holds the lock until the kernel takes it away."""
    try:
        with folder.lock.open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def recover(home: Home, store: Store) -> None:
    """Brings the store in line with the machine. Cheap when all is well; run before every command."""
    now, expired = time.time(), False
    for row in store.rows():
        folder = home.job(row.record.name, row.record.uid)
        if row.record.job.status and row.record.job.status.phase in status.RESTING:
            expired = _expire(store, row, now) or expired
            continue
        if supervised(folder) or (now - row.record.spawned < _STARTING and not _was_locked(folder)):
            continue
        end_leftovers(row.record.uid)
        _report_lost(store, row, now)
    if expired:
        forget_code(home, store)


def _was_locked(folder: JobFolder) -> bool:
    """Whether a supervisor ever got as far as its lock."""
    return folder.lock.exists()


def _report_lost(store: Store, row: Row, now: float) -> None:
    current = store.by_uid(row.record.uid)
    if current is None or (current.record.job.status and current.record.job.status.phase in status.RESTING):
        return  # it came to rest between our look at the store and our look at the lock
    store.release(row.record.uid)
    job = current.record.job
    if current.desired in ("cancel", "delete"):
        job = status.in_phase(job, "Failed", "Cancelled", "its supervisor is gone; nothing is running", now)
    else:
        progress = status.status_of(job).progress
        step = progress.checkpoint_step if progress else None
        saved = f"resume goes on from step {step}" if step is not None else "resume starts it again"
        message = f"its supervisor was killed or the machine restarted; nothing is running; {saved}"
        job = status.in_phase(job, "Suspended", "Interrupted", message, now)
    store.save(msgspec.structs.replace(current.record, job=job))
    store.want(row.record.uid, "suspend" if current.desired == "run" else current.desired)
    store.tell(row.record.uid, Event(now, "Warning", "Interrupted", "the supervisor is gone; nothing is running"))
    if current.desired == "delete":
        store.mark_deleted(row.record.uid)


def _expire(store: Store, row: Row, now: float) -> bool:
    """A finished job is forgotten when its time to live is over. Returns whether it was."""
    job = row.record.job
    flat = job.spec.ttl_seconds_after_finished
    nested = job.spec.lifecycle.ttl_seconds_after_finished if job.spec.lifecycle else None
    queue = row.record.queue.spec.lifecycle
    ttl = next((t for t in (flat, nested, queue.ttl_seconds_after_finished if queue else None) if t is not None), None)
    ended = status.seconds_of(status.status_of(job).completion_time)
    over = ttl is not None and ended is not None and now > ended + ttl
    if over:
        store.mark_deleted(row.record.uid)
    return over


def end_leftovers(uid: str) -> None:
    """Ends processes of a job that outlived their supervisor. Normally there are none: they die with it."""
    marker = f"ORCHESTRA_UID={uid}".encode()
    for _ in range(50):
        found = [pid for pid in _processes() if marker in _environ(pid)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
