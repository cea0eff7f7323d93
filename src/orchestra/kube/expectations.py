"""What we did and have not seen yet.

A cache is behind: a pod created a moment ago is not in it. Whoever decides by the cache alone creates too much or
deletes twice. Expectations are a wait for the watch, not a lock: after five minutes the cache is believed again.
"""

import time
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from orchestra.kube.cache import Cache, Change
from orchestra.kube.objects import Key, T

W = TypeVar("W", Key, str)

_PATIENCE_SECONDS = 300.0


class Expectations(Generic[T]):
    """The unseen creates and deletes of one kind of children, by the UID of their owner."""

    def __init__(
        self, cache: Cache[T], *, patience: float = _PATIENCE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cache = cache
        self._patience = patience
        self._clock = clock
        self._creates: dict[str, dict[Key, float]] = {}
        self._deletes: dict[str, dict[str, float]] = {}
        self._owner_of_create: dict[Key, str] = {}
        self._owner_of_delete: dict[str, str] = {}
        cache.listen(self._hear)

    def expect_create(self, owner: str, key: Key) -> None:
        """Call it before the request: the watch may be faster than the answer."""
        self._creates.setdefault(owner, {})[key] = self._clock() + self._patience
        self._owner_of_create[key] = owner

    def expect_delete(self, owner: str, uid: str, key: Key) -> None:
        """Call it before the request. Nothing is expected of what is gone or going already."""
        known = self._cache.get(key)
        if known is None or known.metadata.uid != uid or known.metadata.deletion_timestamp is not None:
            return
        self._deletes.setdefault(owner, {})[uid] = self._clock() + self._patience
        self._owner_of_delete[uid] = owner

    def drop_create(self, key: Key) -> None:
        """It was not created after all, or has been seen."""
        owner = self._owner_of_create.pop(key, None)
        if owner is not None:
            _drop(self._creates, owner, key)

    def drop_delete(self, uid: str) -> None:
        """It was not deleted after all, or has been seen."""
        owner = self._owner_of_delete.pop(uid, None)
        if owner is not None:
            _drop(self._deletes, owner, uid)

    def found(self, key: Key, uid: str) -> None:
        """A create found it there already: if the cache has it too, no news of it will come."""
        known = self._cache.get(key)
        if known is not None and known.metadata.uid == uid:
            self.drop_create(key)

    def unseen_creates(self, owner: str) -> Collection[Key]:
        """Children that exist as far as we know, though the cache does not know them."""
        self._expire(owner)
        return list(self._creates.get(owner, ()))

    def satisfied(self, owner: str) -> bool:
        """Whether the cache has seen all we did for this owner (or had time enough)."""
        self._expire(owner)
        return owner not in self._creates and owner not in self._deletes

    def expire_in(self, owner: str) -> float | None:
        """Seconds until the first of them is given up: when to look again if nothing comes."""
        deadlines = [*self._creates.get(owner, {}).values(), *self._deletes.get(owner, {}).values()]
        return max(0.0, min(deadlines) - self._clock()) if deadlines else None

    def forget(self, owner: str) -> None:
        """The owner is gone."""
        for key in list(self._creates.get(owner, ())):
            self.drop_create(key)
        for uid in list(self._deletes.get(owner, ())):
            self.drop_delete(uid)

    def _expire(self, owner: str) -> None:
        now = self._clock()
        for key in [key for key, due in self._creates.get(owner, {}).items() if due <= now]:
            self.drop_create(key)
        for uid in [uid for uid, due in self._deletes.get(owner, {}).items() if due <= now]:
            self.drop_delete(uid)

    def _hear(self, change: Change[T]) -> None:
        if change.new is None:
            if change.old is not None:
                self.drop_delete(change.old.metadata.uid)
        elif change.old is None:
            self.drop_create(change.key)  # a birth: news of an older one of this name does not count
        if change.new is not None and change.new.metadata.deletion_timestamp is not None:
            self.drop_delete(change.new.metadata.uid)


def _drop(expected: dict[str, dict[W, float]], owner: str, what: W) -> None:
    held = expected[owner]
    held.pop(what, None)
    if not held:
        del expected[owner]
