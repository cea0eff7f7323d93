"""What the workspace store may forget: snapshots that no unfinished job names, after a while.

Jobs are read from the API server. Where they cannot be read nothing is forgotten: a store that is too full says so, one
that has lost a job's code cannot. A namespace in which something is just being sent is left alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from orchestra.sync.callers import Callers
from orchestra.sync.errors import Missing, SyncError
from orchestra.sync.hashing import is_hash
from orchestra.sync.store import Store

_FINISHED = ("Succeeded", "Failed")
_PAGE = 500
Named = dict[str, set[str]]
"""Snapshots that unfinished jobs name, by namespace."""


def named_by_jobs(callers: Callers) -> Named:
    """What is needed, as the API server tells it."""
    found: Named = defaultdict(set)
    more = ""
    while True:
        page = callers.read(f"/apis/torchrun.ai/v1alpha1/torchrunjobs?limit={_PAGE}&continue={more}")
        for job in page.get("items") or []:
            snapshot = ((job.get("spec") or {}).get("workspace") or {}).get("snapshot")
            if snapshot and (job.get("status") or {}).get("phase") not in _FINISHED:
                found[job["metadata"]["namespace"]].add(snapshot)
        more = (page.get("metadata") or {}).get("continue") or ""
        if not more:
            return found


def forget(store: Store, needed: set[str], older_than: float, now: datetime | None = None) -> tuple[int, int]:
    """Removes what is not needed and was last written before that many seconds: snapshots first, then packs that no
    snapshot uses any more. Returns how many of each.
    """
    limit = (now or datetime.now(UTC)) - timedelta(seconds=older_than)
    gone, used = [], set[str]()
    for item in store.remote.listing("snapshots"):
        id = item.key.removeprefix("snapshots/")
        if is_hash(id) and id not in needed and item.modified < limit:
            gone.append(item.key)
            continue
        try:
            used |= set(store.packs_of(id))
        except Missing:
            continue
    store.remote.delete(gone)
    packs = [
        item.key
        for item in store.remote.listing("packs")
        if item.modified < limit and item.key.removeprefix("packs/") not in used
    ]
    store.remote.delete(packs)
    return len(gone), len(packs)


class Forgetting:
    """Done again and again by the store."""

    def __init__(
        self, stores: Callable[[], dict[str, Store]], quiet: Callable[[str], bool], needed: Callable[[], Named],
        older_than: float, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`stores` by namespace; `quiet` tells whether nobody is sending anything there."""
        self._stores, self._quiet, self._needed = stores, quiet, needed
        self._older_than, self._say = older_than, say
        self._said = ""

    def once(self) -> None:
        """One round. What goes wrong is said once, and tried again next time."""
        try:
            needed = self._needed()
            for namespace, store in self._stores().items():
                if not self._quiet(namespace):
                    continue
                snapshots, packs = forget(store, needed.get(namespace, set()), self._older_than)
                if snapshots or packs:
                    self._say(f"{namespace}: {snapshots} snapshots that no job needs are forgotten, and {packs} packs")
            self._said = ""
        except (SyncError, OSError, ValueError) as error:
            if str(error) != self._said:
                self._said = str(error)
                self._say(f"nothing is forgotten: {error}")
