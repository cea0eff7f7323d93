"""The two ways a workspace becomes a tree: from the folder beside it, or from a store far away."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orchestra.sync.apply import Applied, apply
from orchestra.sync.blobs import Blobs, FolderSource
from orchestra.sync.errors import Changed, Damaged
from orchestra.sync.index import Index
from orchestra.sync.snapshot import Limits, Snapshot, snapshot
from orchestra.sync.store import Progress, Pushed, Store

_TRIES = 3


def capture(
    folder: Path, root: Path, *, named: Iterable[str] = (), limits: Limits | None = None, index: Index | None = None
) -> tuple[Snapshot, Applied]:
    """Snapshot a folder and stand it up as `<root>/current` on this machine: later edits do not reach it.

    Needs no object store. A folder that is being edited is looked at again, a few times, then `Changed`.
    """
    names = tuple(named)
    for attempt in range(1, _TRIES + 1):
        taken = snapshot(folder, named=names, limits=limits, index=index)
        try:
            with FolderSource(folder) as source:
                return taken, apply(taken.manifest, source, root)
        except Changed:
            if attempt == _TRIES:
                raise
    raise AssertionError("unreachable")


def ship(
    folder: Path,
    store: Store,
    *,
    named: Iterable[str] = (),
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> tuple[Snapshot, Pushed]:
    """Snapshot a folder and bring it to a store. When this returns, a worker anywhere can `deliver` it by its id."""
    names = tuple(named)
    for attempt in range(1, _TRIES + 1):
        taken = snapshot(folder, named=names, limits=limits)
        try:
            return taken, store.push(taken, progress)
        except Changed:
            if attempt == _TRIES:
                raise
    raise AssertionError("unreachable")


def deliver(store: Store, id: str, blobs: Blobs, root: Path, progress: Progress | None = None) -> Applied:
    """Bring a snapshot from a store and stand it up as `<root>/current`. Blobs that this disk damaged come anew."""
    for attempt in range(1, _TRIES + 1):
        manifest = store.pull(id, blobs, progress)
        try:
            return apply(manifest, blobs, root)
        except Damaged:
            if attempt == _TRIES:
                raise
    raise AssertionError("unreachable")
