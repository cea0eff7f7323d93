"""The embedded engine behind the engine protocol."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from orchestra.api import TorchrunJob, TorchrunQueue
from orchestra.api.changes import changed
from orchestra.api.engine import Cause, EngineError, Event, LogLine, LogQuery, NotFound, Run, Submission
from orchestra.api.job import Phase
from orchestra.api.problem import Invalid, Problem
from orchestra.api.reloaded import Reloaded
from orchestra.api.spelling import nearest
from orchestra.local.here import plan_here
from orchestra.local.home import Home
from orchestra.local.logs import read_logs
from orchestra.local.machine import LOCAL_QUEUE, Machine
from orchestra.local.recover import recover, supervised
from orchestra.local.reload import first_report
from orchestra.local.store import Record, Row, Store
from orchestra.local.submitted_code import forget_code, with_code
from orchestra.local.why import causes
from orchestra.plan import status


class LocalEngine:
    """Jobs on this machine."""

    name = "local"
    where = "this machine"
    history_note = ""
    tick = 0.1

    def __init__(self, home: Home | None = None) -> None:
        self.home = home or Home.of_user()
        self.store = Store(self.home.database)
        recover(self.home, self.store)

    def look(self) -> None:
        """Looks again who is alive; a command that goes on for a while does this between."""
        recover(self.home, self.store)

    def again(self) -> LocalEngine:
        """The same engine for another thread: SQLite connections belong to their thread."""
        return LocalEngine(self.home)

    # ---- reading

    def get(self, name: str) -> TorchrunJob:
        """One job with its status."""
        return self._find(name).record.job

    def jobs(self) -> list[TorchrunJob]:
        """All jobs, oldest first."""
        return [row.record.job for row in self.store.rows()]

    def history(self) -> list[Run]:
        """Every run there ever was, oldest first."""
        return [Run(row.record.job, row.deleted) for row in self.store.rows(deleted=True)]

    def newest(self, folder: Path, name: str = "") -> str | None:
        """Name of the newest job submitted from a folder; with a name, only if that is its."""
        mine = [row.record.name for row in self.store.rows() if row.record.folder == str(folder)]
        return next((one for one in reversed(mine) if name in ("", one)), None)

    def folder(self, name: str) -> Path:
        """The folder that the job was submitted from."""
        return Path(self._find(name).record.folder)

    def output(self, name: str) -> Path:
        """Where the job writes its checkpoints."""
        record = self._find(name).record
        return self.home.job(record.name, record.uid).output

    def losses(self, name: str) -> list[float]:
        """The last losses, for a small curve."""
        return self._find(name).record.losses

    def places(self, name: str) -> dict[str, str]:
        """The folders of its logs and outputs."""
        return {"logs": str(self.log_folder(name)), "output": str(self.output(name))}

    def log_folder(self, name: str) -> Path:
        """Where the job's logs lie."""
        record = self._find(name).record
        return self.home.job(record.name, record.uid).root / "nodes"

    def logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        """Lines of all ranks; with `follow`, until the job has come to rest."""
        record = self._find(name).record
        return read_logs(self.home.job(name, record.uid), query, lambda: self._at_rest(record.uid))

    def events(self, name: str) -> list[Event]:
        """What happened, oldest first."""
        return self.store.events(self._find(name).record.uid)

    def why(self, name: str) -> list[Cause]:
        """Why the job is where it is."""
        row = self._find(name)
        return causes(row, self.store.rows(), Machine.here())

    def queues(self) -> list[TorchrunQueue]:
        """The built-in queue and those that came with jobs."""
        return [Machine.here().queue(), *(q for q in self.store.queues() if q.metadata.name != LOCAL_QUEUE)]

    # ---- changing

    def submit(self, submission: Submission) -> TorchrunJob:
        """Starts a job. A finished job of the same name makes room for it; an active one does not."""
        queue = submission.queue or self._queue(submission.job.spec.job_queue)
        now = time.time()
        uid = str(uuid.uuid4())
        meta = msgspec.structs.replace(
            submission.job.metadata, uid=uid, generation=1, creation_timestamp=status.timestamp(now)
        )
        job = msgspec.structs.replace(submission.job, metadata=meta, status=None)
        record = Record(job=job, queue=queue, folder=submission.folder, cpu=submission.cpu, spawned=now)
        plan_here(record, Machine.here(), None, (0, 0))  # refuses now what could never run
        first: Phase = "Suspended" if job.spec.suspend else "Pending"
        with with_code(self.home, record, submission) as (record, told):
            begun = status.in_phase(record.job, first, "Submitted", "submitted", now)
            record = msgspec.structs.replace(record, job=begun)
            self._make_room(meta.name)
            try:
                self.store.add(record)
            except sqlite3.IntegrityError as error:
                raise EngineError(f"another job {meta.name} was submitted at the same moment") from error
        forget_code(self.home, self.store)
        if submission.queue is not None:
            self.store.keep_queue(submission.queue)
        self.store.tell(uid, Event(now, "Normal", "Submitted", f"from {submission.folder}"))
        for event in told:
            self.store.tell(uid, event)
        if job.spec.suspend:
            self.store.want(uid, "suspend")
        else:
            self._supervise(record)
        return self.get(meta.name)

    def sync(self, name: str, include: list[str] | None = None) -> Reloaded | None:
        """Brings the folder's changes into a running job and waits until all workers have them, or none.

        None where nothing has changed. A job that does not run yet, or is suspended, starts on the new code.
        """
        from orchestra.local.sync import sync

        return sync(self.home, self.store, self._active_or_suspended(name), include or [])

    def preload(self, name: str) -> Reloaded | None:
        """Has the next generation's processes ready, so that the next `sync` is quick."""
        from orchestra.local.sync import preload

        return preload(self.home, self._active_or_suspended(name))

    def stepped_at(self, name: str) -> float | None:
        """When rank 0 first reported a step since it was last started; None as long as it has not."""
        record = self._find(name).record
        return first_report(self.home.job(name, record.uid).node(0))

    def suspend(self, name: str) -> TorchrunJob:
        """Asks for a checkpoint and a stop."""
        row = self._active(name, "suspended")
        self.store.want(row.record.uid, "suspend")
        return self.get(name)

    def cancel(self, name: str) -> TorchrunJob:
        """Stops the job for good."""
        row = self._find(name)
        if status.status_of(row.record.job).phase == "Suspended":
            job = status.in_phase(row.record.job, "Failed", "Cancelled", "cancelled while suspended", time.time())
            self.store.save(msgspec.structs.replace(row.record, job=job))
            self.store.want(row.record.uid, "cancel")
            return self.get(name)
        self._active(name, "cancelled")
        self.store.want(row.record.uid, "cancel")
        return self.get(name)

    def resume(self, name: str, changes: dict[str, Any]) -> TorchrunJob:
        """Goes on from the last checkpoint."""
        row = self._find(name)
        phase = status.status_of(row.record.job).phase
        if phase != "Suspended":
            raise EngineError(f"{name} is {phase}, not Suspended; there is nothing to resume")
        job = changed(row.record.job, changes) if changes else row.record.job
        spec = msgspec.structs.replace(job.spec, suspend=False)
        job = msgspec.structs.replace(job, spec=spec)
        now = time.time()
        record = msgspec.structs.replace(row.record, job=job, spawned=now, spent=0, free_retries=0)
        plan_here(record, Machine.here(), None, (0, 0))
        job = status.in_phase(job, "Pending", "Resumed", "resumed", now)
        record = msgspec.structs.replace(record, job=job)
        self.store.save(record)
        self.store.want(record.uid, "run")
        self.store.tell(record.uid, Event(now, "Normal", "Resumed", ", ".join(changes) or "unchanged"))
        self._supervise(record)
        return self.get(name)

    def delete(self, name: str, *, purge: bool = False) -> None:
        """Stops the job, waits for its end, and forgets it. Outputs stay unless purged."""
        record = self._find(name).record
        folder = self.home.job(name, record.uid)
        self.store.want(record.uid, "delete")
        while supervised(folder):
            time.sleep(0.05)
        self.store.mark_deleted(record.uid)
        forget_code(self.home, self.store)
        shutil.rmtree(folder.root / "nodes", ignore_errors=True)
        if purge or not any(folder.output.glob("*")):
            shutil.rmtree(folder.root, ignore_errors=True)

    # ---- within

    def _find(self, name: str) -> Row:
        row = self.store.find(name)
        if row is None:
            guess = nearest(name, [one.record.name for one in self.store.rows()])
            raise NotFound(f"there is no job {name} here" + (f"; did you mean {guess}?" if guess else ""))
        return row

    def _active_or_suspended(self, name: str) -> Row:
        row = self._find(name)
        return row if status.status_of(row.record.job).phase == "Suspended" else self._active(name, "given new code")

    def _active(self, name: str, done: str) -> Row:
        row = self._find(name)
        phase = status.status_of(row.record.job).phase
        if phase in status.RESTING:
            raise EngineError(f"{name} is {phase} already; it cannot be {done}")
        return row

    def _at_rest(self, uid: str) -> bool:
        recover(self.home, self.store)
        row = self.store.by_uid(uid)
        return row is None or row.deleted is not None or status.status_of(row.record.job).phase in status.RESTING

    def _queue(self, name: str) -> TorchrunQueue:
        found = {queue.metadata.name: queue for queue in self.queues()}
        if name not in found:
            guess = nearest(name, found)
            mend = f"did you mean {guess}?" if guess else f"known here: {', '.join(sorted(found))}"
            raise Invalid([Problem("spec.jobQueue", f"there is no queue {name!r}", mend)])
        return found[name]

    def _make_room(self, name: str) -> None:
        row = self.store.find(name)
        if row is None:
            return
        phase = status.status_of(row.record.job).phase
        if phase not in status.FINISHED:
            raise EngineError(f"{name} is {phase}; delete or cancel it first, or give the new job another name")
        self.store.mark_deleted(row.record.uid)

    def _supervise(self, record: Record) -> None:
        """Starts the supervisor, which detaches itself once it has its lock."""
        folder = self.home.job(record.name, record.uid)
        folder.root.mkdir(parents=True, exist_ok=True)
        with folder.supervisor_log.open("ab") as log:
            started = subprocess.run(
                [sys.executable, "-m", "orchestra.local.supervisor", record.name, record.uid],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/", check=False,
                env=os.environ | {"ORCHESTRA_HOME": str(self.home.root)},
            )  # fmt: skip
        if started.returncode:
            tail = folder.supervisor_log.read_text()[-2000:]
            raise EngineError(f"the supervisor of {record.name} did not start:\n{tail}")
