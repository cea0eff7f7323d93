"""The store."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import msgspec
import pytest

from builders import a_cpu_queue, a_job
from orchestra.api.engine import EngineError, Event
from orchestra.local.store import Record, SlotClaim, Store


def a_record(name: str, uid: str) -> Record:
    job = a_job(name, env=[{"name": "A", "value": "ü"}])
    job = msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, uid=uid))
    return Record(job=job, queue=a_cpu_queue(nodeResources={"memory": "4Gi"}), folder="/f", spawned=1.0)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "jobs.db")
    record = a_record("a", "1")
    store.add(record)
    row = Store(tmp_path / "jobs.db").find("a")
    assert row is not None
    assert row.record == record


def test_a_name_is_taken_once_until_it_is_deleted(tmp_path: Path) -> None:
    store = Store(tmp_path / "jobs.db")
    store.add(a_record("a", "1"))
    with pytest.raises(sqlite3.IntegrityError):
        store.add(a_record("a", "2"))
    store.mark_deleted("1")
    store.add(a_record("a", "3"))
    assert [row.record.uid for row in store.rows()] == ["3"]
    assert [row.record.uid for row in store.rows(deleted=True)] == ["1", "3"]


def test_a_deletion_is_never_taken_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "jobs.db")
    store.add(a_record("a", "1"))
    store.want("1", "delete")
    store.want("1", "run")
    assert store.desired("1") == "delete"
    assert store.desired("unknown") == "delete"


def test_the_line_is_kept_in_the_order_of_waiting(tmp_path: Path) -> None:
    store = Store(tmp_path / "jobs.db")
    for uid in ("1", "2"):
        store.add(a_record(f"job-{uid}", uid))
    store.line_up("2", SlotClaim(0, 1))
    store.line_up("1", SlotClaim(0, 1))
    with store.line() as rows:
        assert [row.record.uid for row in rows] == ["2", "1"]
        store.hold("2", SlotClaim(0, 1, []))
    row = store.by_uid("2")
    assert row is not None
    assert row.claim == SlotClaim(0, 1, [])
    store.release("2")
    with store.line() as rows:
        assert [row.record.uid for row in rows] == ["1"]


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    Store(tmp_path / "jobs.db").add(a_record("a", "1"))

    def write(number: int) -> None:
        store = Store(tmp_path / "jobs.db")
        for step in range(10):
            store.tell("1", Event(float(step), "Normal", "R", f"{number}-{step}"))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({event.message for event in Store(tmp_path / "jobs.db").events("1")}) == 40


def test_a_store_that_cannot_be_used_says_so_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_text("this is no database, but it is long enough to be looked at" * 20)
    with pytest.raises(EngineError, match="ORCHESTRA_HOME"):
        Store(tmp_path / "jobs.db")
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="cannot be used"):
        Store(tmp_path / "file" / "jobs.db")


def test_nobody_else_reads_the_engines_folder(tmp_path: Path) -> None:
    Store(tmp_path / "home" / "jobs.db")
    assert (tmp_path / "home").stat().st_mode & 0o077 == 0
