"""The store: SQLite, so that the truth about a job survives the death of anything."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from orchestra.api.base import Model, decode_hook, encode_hook
from orchestra.api.engine import EngineError, Event
from orchestra.api.job import TorchrunJob
from orchestra.api.queue import TorchrunQueue

Desired = Literal["run", "suspend", "cancel", "delete"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    uid TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    created REAL NOT NULL,
    queued REAL NOT NULL,           -- when it began to wait: the order of the line
    desired TEXT NOT NULL,
    claim BLOB,                     -- the slots it wants or holds; null when it wants none
    record BLOB NOT NULL,
    deleted REAL
);
CREATE UNIQUE INDEX IF NOT EXISTS one_of_a_name ON jobs (name) WHERE deleted IS NULL;
CREATE TABLE IF NOT EXISTS events (
    uid TEXT NOT NULL,
    time REAL NOT NULL,
    event BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS events_of ON events (uid, time);
CREATE TABLE IF NOT EXISTS queues (name TEXT PRIMARY KEY, queue BLOB NOT NULL);
"""

_encoder = msgspec.json.Encoder(enc_hook=encode_hook)


class Record(Model, kw_only=True):
    """Everything about one job that must outlive its processes."""

    job: TorchrunJob
    """With its status."""
    queue: TorchrunQueue
    folder: str
    """Where it was submitted from."""
    cpu: bool = False
    spawned: float = 0.0
    """When its supervisor was last started."""
    spent: int = 0
    """Restarts spent since the last new checkpoint."""
    free_retries: int = 0
    """Attempts lost through no fault of the job since the last new checkpoint."""

    losses: list[float] = []
    """The last losses, for a small curve."""

    @property
    def uid(self) -> str:
        """The job's uid."""
        return self.job.metadata.uid or ""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.metadata.name


class SlotClaim(Model):
    """Slots in the store: wanted, and held once `held` says which GPUs."""

    gpus: int
    cores: int
    held: list[int] | None = None


class Row(Model, kw_only=True):
    """A record with what changes around it."""

    record: Record
    desired: Desired
    queued: float
    claim: SlotClaim | None = None
    deleted: float | None = None


_records = msgspec.json.Decoder(Record, dec_hook=decode_hook)
_claims = msgspec.json.Decoder(SlotClaim)
_queues = msgspec.json.Decoder(TorchrunQueue, dec_hook=decode_hook)
_events = msgspec.json.Decoder(Event)
_COLUMNS = "record, desired, queued, claim, deleted"


class Store:
    """One connection. Every method is one transaction."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # jobs have environments: nobody else's business
            self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            with self._transaction():
                for statement in _SCHEMA.split(";\n"):
                    if statement.strip():
                        self._connection.execute(statement)
        except (OSError, sqlite3.Error) as error:
            mend = "set ORCHESTRA_HOME to another folder, or move this one away"
            raise EngineError(f"the store {path} cannot be used: {error}; {mend}") from error

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, sqlite3.ProgrammingError):
            self.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def add(self, record: Record) -> None:
        """A new job. Raises `sqlite3.IntegrityError` when one of that name is there."""
        now = record.spawned
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO jobs (uid, name, created, queued, desired, record) VALUES (?, ?, ?, ?, 'run', ?)",
                (record.uid, record.name, now, now, _encoder.encode(record)),
            )

    def find(self, name: str) -> Row | None:
        """The living job of that name."""
        return self._one("name = ? AND deleted IS NULL", name)

    def by_uid(self, uid: str) -> Row | None:
        """A job, deleted or not."""
        return self._one("uid = ?", uid)

    def rows(self, *, deleted: bool = False) -> list[Row]:
        """All living jobs, or all that ever were, oldest first."""
        where = "" if deleted else "WHERE deleted IS NULL"
        found = self._connection.execute(f"SELECT {_COLUMNS} FROM jobs {where} ORDER BY created, rowid")  # noqa: S608
        return [_row(*columns) for columns in found]

    def _one(self, where: str, value: str) -> Row | None:
        found = self._connection.execute(f"SELECT {_COLUMNS} FROM jobs WHERE {where}", (value,)).fetchone()  # noqa: S608
        return _row(*found) if found else None

    def save(self, record: Record) -> None:
        """Replaces a record; a job that is gone stays gone."""
        with self._transaction() as connection:
            connection.execute("UPDATE jobs SET record = ? WHERE uid = ?", (_encoder.encode(record), record.uid))

    def want(self, uid: str, desired: Desired) -> None:
        """What the user wants of a job. A deletion is never taken back."""
        with self._transaction() as connection:
            connection.execute("UPDATE jobs SET desired = ? WHERE uid = ? AND desired != 'delete'", (desired, uid))

    def desired(self, uid: str) -> Desired:
        """What the user wants; `delete` for a job that is gone."""
        found = self._connection.execute(
            "SELECT desired FROM jobs WHERE uid = ? AND deleted IS NULL", (uid,)
        ).fetchone()
        return found[0] if found else "delete"

    def mark_deleted(self, uid: str) -> None:
        """Forgets a job, but for its history."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE jobs SET deleted = ?, claim = NULL, desired = 'delete' WHERE uid = ?", (time.time(), uid)
            )

    # ---- slots

    def line_up(self, uid: str, claim: SlotClaim) -> None:
        """Joins the end of the line for slots."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE jobs SET claim = ?, queued = ? WHERE uid = ?", (_encoder.encode(claim), time.time(), uid)
            )

    def release(self, uid: str) -> None:
        """Gives slots back, or leaves the line."""
        with self._transaction() as connection:
            connection.execute("UPDATE jobs SET claim = NULL WHERE uid = ?", (uid,))

    @contextlib.contextmanager
    def line(self) -> Iterator[list[Row]]:
        """All jobs that hold or want slots, in the order of the line; nobody else moves meanwhile."""
        with self._transaction() as connection:
            found = connection.execute(
                f"SELECT {_COLUMNS} FROM jobs WHERE claim IS NOT NULL AND deleted IS NULL ORDER BY queued, rowid"  # noqa: S608
            )
            yield [_row(*columns) for columns in found]

    def hold(self, uid: str, claim: SlotClaim) -> None:
        """Takes slots. Only within `line()`."""
        self._connection.execute("UPDATE jobs SET claim = ? WHERE uid = ?", (_encoder.encode(claim), uid))

    # ---- events and queues

    def tell(self, uid: str, event: Event) -> None:
        """Remembers an event."""
        with self._transaction() as connection:
            connection.execute("INSERT INTO events VALUES (?, ?, ?)", (uid, event.time, _encoder.encode(event)))

    def events(self, uid: str) -> list[Event]:
        """Events of a job, oldest first."""
        found = self._connection.execute("SELECT event FROM events WHERE uid = ? ORDER BY time, rowid", (uid,))
        return [_events.decode(event) for (event,) in found]

    def keep_queue(self, queue: TorchrunQueue) -> None:
        """Remembers a queue for later jobs."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO queues VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET queue = excluded.queue",
                (queue.metadata.name, _encoder.encode(queue)),
            )

    def queues(self) -> list[TorchrunQueue]:
        """The queues that came with jobs, by name."""
        found = self._connection.execute("SELECT queue FROM queues ORDER BY name")
        return [_queues.decode(queue) for (queue,) in found]


def _row(record: bytes, desired: Desired, queued: float, claim: bytes | None, deleted: float | None) -> Row:
    return Row(
        record=_records.decode(record),
        desired=desired,
        queued=queued,
        claim=_claims.decode(claim) if claim else None,
        deleted=deleted,
    )
