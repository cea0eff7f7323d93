"""From a folder to a job's snapshot, and the end of it: what `submit` takes, and what goes with the job."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from orchestra.api.engine import EngineError, Event, Submission
from orchestra.api.job import TorchrunJob, Workspace
from orchestra.api.labels import COMMIT_ANNOTATION
from orchestra.local.home import Home
from orchestra.local.store import Record, Store
from orchestra.plan.volumes import plan_code

if TYPE_CHECKING:
    from orchestra.sync.snapshot import Snapshot

COMMIT = COMMIT_ANNOTATION
_DIRTY = "-dirty"


@contextmanager
def with_code(home: Home, record: Record, submission: Submission) -> Iterator[tuple[Record, list[Event]]]:
    """The record with a snapshot of its folder, and what is to be told of it. Kept until the job is in the store."""
    if not _ships(home, record, submission):
        yield record, []
        return
    from orchestra.local.code import Codes
    from orchestra.sync.errors import SyncError
    from orchestra.sync.snapshot import limits_of

    codes, given = Codes(home), record.job.spec.workspace
    with codes.held():
        try:
            if given is not None and given.snapshot:  # a run of old code: it must still be here
                codes.manifest(given.snapshot)
                yield record, []
                return
            taken = codes.keep(Path(submission.folder), submission.include, limits_of(os.environ))
        except SyncError as error:
            raise EngineError(str(error)) from error
        yield msgspec.structs.replace(record, job=with_snapshot(record.job, taken)), told_of(taken, time.time())


def _ships(home: Home, record: Record, submission: Submission) -> bool:
    folder = Path(submission.folder).resolve()
    sync = record.job.spec.sync
    if (
        submission.in_place
        or (sync is not None and sync.code)
        or folder.is_relative_to(home.root.resolve())
        or not folder.is_dir()
    ):
        return False
    code = plan_code(record.job.spec, record.queue.spec)
    return code is None or code.source == "local"


def with_snapshot(job: TorchrunJob, taken: Snapshot) -> TorchrunJob:
    """The job with the snapshot and the commit that it runs."""
    workspace = msgspec.structs.replace(job.spec.workspace or Workspace(), snapshot=taken.id)
    annotations = {name: value for name, value in job.metadata.annotations.items() if name != COMMIT}
    if taken.commit is not None:
        annotations[COMMIT] = taken.commit.id + (_DIRTY if taken.commit.dirty else "")
    return msgspec.structs.replace(
        job,
        metadata=msgspec.structs.replace(job.metadata, annotations=annotations),
        spec=msgspec.structs.replace(job.spec, workspace=workspace),
    )


def told_of(taken: Snapshot, now: float) -> list[Event]:
    """What a user should know of a snapshot."""
    commit = ""
    if taken.commit is not None:
        commit = f", commit {taken.commit.id[:10]}{' with changes' if taken.commit.dirty else ''}"
    left = f"; {taken.left_count} stay home (--dry-run lists them)" if taken.left_count else ""
    size = f"{taken.manifest.files:,} files, {size_text(taken.manifest.bytes)}"
    events = [Event(now, "Normal", "Workspace", f"snapshot {taken.id[:12]}: {size}{commit}{left}")]
    warnings = list(taken.warnings)
    if taken.secrets:
        names = ", ".join(one.path for one in taken.secrets[:10])
        more = f" and {len(taken.secrets) - 10} more" if len(taken.secrets) > 10 else ""
        warnings.append(f"{names}{more} look like secrets and stay home; --include PATH ships one")
    return events + [Event(now, "Warning", "Workspace", text) for text in warnings]


def size_text(size: float) -> str:
    """A size as people read it."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def snapshot_of(job: TorchrunJob) -> str | None:
    """The snapshot that a job runs on."""
    return job.spec.workspace.snapshot if job.spec.workspace else None


def commit_text(job: TorchrunJob) -> str:
    """The commit for a table: short, with a star where the folder differed from it."""
    text = job.metadata.annotations.get(COMMIT, "")
    return text.removesuffix(_DIRTY)[:10] + ("*" if text.endswith(_DIRTY) else "")


def forget_code(home: Home, store: Store) -> None:
    """After a job is gone: its trees, and the snapshots that no other job runs on."""
    if not home.code.is_dir():
        return
    from orchestra.local.code import Codes

    rows = store.rows(deleted=True)
    for row in rows:
        job = home.job(row.record.name, row.record.uid)
        if row.deleted is not None and job.code.is_dir():
            Codes(home).bring_home(job, Path(row.record.folder))
            shutil.rmtree(job.code, ignore_errors=True)
    living = {snapshot_of(row.record.job) for row in rows if row.deleted is None}
    asked = {id for row in rows if row.deleted is None for id in asked_for(home, row.record)}
    Codes(home).prune({id for id in living | asked if id})


def asked_for(home: Home, record: Record) -> Iterator[str]:
    """Snapshots that a running job is about to change to."""
    for file in home.job(record.name, record.uid).reload.glob("*.json"):
        try:
            yield str(msgspec.json.decode(file.read_bytes())["snapshot"])
        except (OSError, msgspec.MsgspecError, KeyError, TypeError):
            continue
