"""New code for a running job of a cluster: sent to the store, staged by every worker, changed in all or none.

The workers follow the store's orders (sync/board.py). What only the user may do is done here: taking the snapshot, and
writing it on the job, between the moment when every worker has the new code and the moment when the first one stops.
From then on a worker that is replaced starts with the new code.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from orchestra.api.engine import EngineError
from orchestra.api.job import TorchrunJob
from orchestra.api.labels import COMMIT_ANNOTATION, GENERATION_ANNOTATION, RESTART_ANNOTATION
from orchestra.api.reloaded import Reloaded
from orchestra.cluster.kinds import Pod
from orchestra.cluster.workspace import commit_note, send_folder
from orchestra.plan import status
from orchestra.sync.blobs import Blobs
from orchestra.sync.board import Asked, Change, Report
from orchestra.sync.client import Ask, served_by
from orchestra.sync.errors import Missing
from orchestra.sync.manifest import Manifest, changes
from orchestra.sync.snapshot import Snapshot, limits_of

_LOOK_SECONDS = 8
PREPARE_SECONDS = 120.0
Write = Callable[[dict[str, Any]], TorchrunJob]
"""Patches the job."""


class Reloading:
    """One job and the store that its workers listen to."""

    def __init__(self, ask: Ask, job: TorchrunJob, workers: Sequence[Pod], write: Write) -> None:
        self._ask, self._job, self._write = ask, job, write
        attempt = status.status_of(job).attempt or 1
        self._attempt = attempt
        self._workers = [pod.metadata.name for pod in workers if pod.attempt == attempt and not pod.ended]
        self._path = f"/v1/reloads/{job.metadata.uid}"
        self._last: Change | None = None
        self._ended = 0.0

    # ---- looking

    def manifest(self) -> Manifest:
        """The code that the job is said to run."""
        return served_by(self._ask).manifest(snapshot_of(self._job))

    def contents(self, hashes: set[str]) -> dict[str, bytes]:
        """What files of the job's code hold, by their hashes."""
        with tempfile.TemporaryDirectory() as folder:
            served_by(self._ask).pull(snapshot_of(self._job), Blobs(Path(folder)), only=hashes)
            return {name: (Path(folder) / name).read_bytes() for name in hashes}

    def running(self) -> set[str]:
        """The snapshots that workers say they stand on."""
        told = self._ask("GET", f"/v1/workers/{self._job.metadata.uid}", None, {})
        found = msgspec.json.decode(told, type=list[Report])
        return {one.snapshot for one in found if one.worker in self._workers and one.attempt == self._attempt}

    # ---- changing

    def preload(self) -> Reloaded:
        """Only have the successors ready."""
        change = self._begin("")
        return _told(self._until(change, ("preloaded",)))

    def sync(self, folder: Path, include: list[str]) -> Reloaded | None:
        """Brings the folder's changes into the job. None where it runs them already."""
        begun = time.monotonic()
        taken = send_folder(self._ask, folder, include, limits_of(os.environ))
        phase = status.status_of(self._job).phase
        if phase != "Running":
            return self._stored(taken, phase or "Pending")
        if taken.id == snapshot_of(self._job) and self.running() <= {taken.id}:
            return None
        if self._environment_changed(taken):
            return self._anew(taken)
        sent = time.monotonic() - begun
        change = self._until(self._begin(taken.id), ("prepared",))
        if change.state == "prepared":
            self._write(self._patch(taken, {GENERATION_ANNOTATION: str(change.generation)}))
            self._ask("POST", f"{self._path}/go", msgspec.json.encode({"id": change.id}), {})
            change = self._until(change, ("reloaded", "stepped"))
        self._last, self._ended = change, time.time()
        made = _told(change)
        return msgspec.structs.replace(made, seconds={"send": sent, **made.seconds})

    def stepped_at(self) -> float | None:
        """When the first step with the new code was reported, by this machine's clock; waits a little for it."""
        if self._last is None:
            return None
        self._last = self._look(self._last, "reloaded", 2)
        if self._last.stepped is None:
            return None
        return self._ended + self._last.stepped

    def _stored(self, taken: Snapshot, phase: str) -> Reloaded | None:
        name = self._job.metadata.name
        if phase in status.FINISHED:
            raise EngineError(f"{name} is {phase} already; it cannot be given new code")
        if taken.id == snapshot_of(self._job):
            return None
        self._write(self._patch(taken, {}))
        if phase == "Provisioning":
            return self._restarted(f"{name} is being started: all workers are started anew, with the new code")
        word = "suspended: resume runs the new code" if phase == "Suspended" else f"{phase}: it starts on the new code"
        return Reloaded(generation=0, state="stored", message=f"{name} is {word}")

    def _environment_changed(self, taken: Snapshot) -> bool:
        environment = self._job.spec.environment
        if environment is None:
            return False
        found = changes(self.manifest(), taken.manifest)
        return (environment.requirements or "requirements.txt") in found.touched

    def _anew(self, taken: Snapshot) -> Reloaded:
        self._write(self._patch(taken, {}))
        return self._restarted("what the environment is made of has changed: all workers are started anew")

    def _restarted(self, message: str) -> Reloaded:
        self._write({"metadata": {"annotations": {RESTART_ANNOTATION: str(self._attempt)}}})
        return Reloaded(generation=0, state="restarted", message=message)

    def _patch(self, taken: Snapshot, notes: dict[str, str]) -> dict[str, Any]:
        said = {COMMIT_ANNOTATION: None, **commit_note(taken), **notes}
        return {
            "metadata": {"uid": self._job.metadata.uid, "annotations": said},
            "spec": {"workspace": {"snapshot": taken.id}},
        }

    def _begin(self, snapshot: str) -> Change:
        if not self._workers:
            raise EngineError(f"{self._job.metadata.name} has no worker that runs; why tells the reason")
        asked = Asked(
            id=secrets.token_hex(16),
            generation=generation_of(self._job) + 1,
            workers=self._workers,
            attempt=self._attempt,
            snapshot=snapshot,
            prepare_seconds=float(os.environ.get("ORCHESTRA_RELOAD_SECONDS") or PREPARE_SECONDS),
            grace=float((self._job.spec.lifecycle and self._job.spec.lifecycle.grace_period_seconds) or 30),
        )
        return msgspec.json.decode(self._ask("POST", self._path, msgspec.json.encode(asked), {}), type=Change)

    def _until(self, change: Change, states: tuple[str, ...]) -> Change:
        while not change.over and change.state not in states:
            change = self._look(change, change.state, _LOOK_SECONDS)
        return change

    def _look(self, change: Change, after: str, seconds: int) -> Change:
        path = f"{self._path}?id={change.id}&after={after}&wait={seconds}"
        try:
            return msgspec.json.decode(self._ask("GET", path, None, {}), type=Change)
        except Missing as error:
            mend = "its workers let go by themselves; sync again"
            raise EngineError(f"the workspace store was started anew in the middle of it: {mend}") from error


def snapshot_of(job: TorchrunJob) -> str:
    """The snapshot that a job runs on."""
    id = job.spec.workspace.snapshot if job.spec.workspace else None
    if not id:
        raise EngineError(f"{job.metadata.name} was not submitted from a folder: there is no code of it to change")
    return id


def generation_of(job: TorchrunJob) -> int:
    """How often the job had new code."""
    text = job.metadata.annotations.get(GENERATION_ANNOTATION, "")
    return int(text) if text.isdecimal() else 0


def _told(change: Change) -> Reloaded:
    state = "reloaded" if change.state == "stepped" else change.state
    return Reloaded(
        generation=change.generation, state=state, message=change.message, seconds=change.seconds, step=change.step,
        saved=change.saved, cold=change.cold, late=change.late,
    )  # fmt: skip
