"""`sync`: this folder's changes for a running job. Takes the snapshot; the job's supervisor does the rest."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from orchestra.api.engine import EngineError
from orchestra.api.reloaded import Reloaded
from orchestra.local.code import Codes
from orchestra.local.home import Home, JobFolder
from orchestra.local.recover import supervised
from orchestra.local.reload import PREPARE_SECONDS, Request, newest_generation, read_answer, write_request
from orchestra.local.store import Row, Store
from orchestra.local.submitted_code import COMMIT, snapshot_of, with_snapshot
from orchestra.plan.status import status_of
from orchestra.sync.errors import SyncError
from orchestra.sync.manifest import Changes
from orchestra.sync.snapshot import changes, limits_of

_TICK = 0.02
_ANSWER_SECONDS = 900.0


def pending_changes(home: Home, row: Row) -> Changes:
    """What differs now between the folder and the code of the job."""
    id = _snapshot(row)
    codes = Codes(home)
    try:
        with codes.held():
            return changes(codes.manifest(id), codes.keep(Path(row.record.folder), (), limits_of(os.environ)).manifest)
    except SyncError as error:
        raise EngineError(str(error)) from error


def sync(home: Home, store: Store, row: Row, include: list[str]) -> Reloaded | None:
    """See `LocalEngine.sync`."""
    record, id, codes = row.record, _snapshot(row), Codes(home)
    folder = home.job(record.name, record.uid)
    with codes.held():
        try:
            taken = codes.keep(Path(record.folder), include, limits_of(os.environ))
            if taken.id == id:
                return None
            found = changes(codes.manifest(id), taken.manifest)
        except SyncError as error:
            raise EngineError(str(error)) from error
        new = with_snapshot(record.job, taken)
        phase = status_of(record.job).phase
        if phase == "Suspended":
            store.save(msgspec.structs.replace(record, job=new))
            return _stored(f"{record.name} is suspended: resume runs the new code")
        touched = {*found.added, *found.removed, *found.changed}
        environment = record.job.spec.environment
        full = environment is not None and (environment.requirements or "requirements.txt") in touched
        request = Request(
            generation=newest_generation(folder) + 1,
            snapshot=taken.id,
            annotations={COMMIT: new.metadata.annotations.get(COMMIT, "")},
            full=full,
            prepare_seconds=_patience(),
        )
        write_request(folder, request)
        if phase not in ("Running", "Provisioning"):
            return _stored(f"{record.name} is {phase}: it starts on the new code")
        return _wait(folder, request, record.name)


def preload(home: Home, row: Row) -> Reloaded | None:
    """See `LocalEngine.preload`."""
    folder = home.job(row.record.name, row.record.uid)
    if status_of(row.record.job).phase != "Running":
        return None
    request = Request(generation=newest_generation(folder) + 1, prepare_seconds=_patience())
    write_request(folder, request)
    return _wait(folder, request, row.record.name)


def _patience() -> float:
    return float(os.environ.get("ORCHESTRA_RELOAD_SECONDS") or PREPARE_SECONDS)


def _stored(message: str) -> Reloaded:
    return Reloaded(generation=0, state="stored", message=message)


def _snapshot(row: Row) -> str:
    id = snapshot_of(row.record.job)
    if id is None:
        raise EngineError(f"{row.record.name} runs in {row.record.folder} itself: edits reach it when it restarts")
    return id


def _wait(folder: JobFolder, request: Request, name: str) -> Reloaded:
    until = time.monotonic() + _ANSWER_SECONDS
    while True:
        answer = read_answer(folder, request.generation)
        if answer is not None:
            return answer
        if not supervised(folder):
            raise EngineError(f"{name} ended before it took the new code")
        if time.monotonic() > until:
            raise EngineError(f"{name} did not answer; its next start runs on the code that it had")
        time.sleep(_TICK)
