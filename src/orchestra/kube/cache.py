"""What we know of the cluster: all objects of one kind, found by key and by index, and who wants to hear of changes.

Everything here is synchronous: between two awaits of a reader nothing changes, and an index never disagrees with the
objects.
"""

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Generic

import msgspec

from orchestra.kube.objects import Key, T

_log = logging.getLogger(__name__)


class Change(msgspec.Struct, Generic[T], frozen=True):
    """What happened to one object. `old` is None when it is new; `new` is None when it is gone."""

    key: Key
    old: T | None
    """On a deletion: its last state, as far as we know it."""
    new: T | None
    initial: bool = False
    """Whether it was there when we first looked: no news, so no hurry."""


Listener = Callable[[Change[T]], None]


class Index(Generic[T]):
    """Objects by the values a function finds in them."""

    def __init__(self, values_of: Callable[[T], Iterable[Hashable]]) -> None:
        self._values_of = values_of
        self._found: dict[Hashable, dict[Key, T]] = {}

    def get(self, value: Hashable) -> Collection[T]:
        """The objects with this value, as they are now; the collection is the caller's own."""
        return list(self._found.get(value, {}).values())

    def count(self, value: Hashable) -> int:
        """How many there are."""
        return len(self._found.get(value, ()))

    def values(self) -> Collection[Hashable]:
        """All values that some object has."""
        return self._found.keys()

    def replace(self, key: Key, old: T | None, new: T | None) -> None:
        """For the cache alone: follow one change."""
        before = () if old is None else tuple(self._values_of(old))
        after = () if new is None else tuple(self._values_of(new))
        for value in before:
            if value not in after and (held := self._found.get(value)) is not None:
                held.pop(key, None)
                if not held:
                    del self._found[value]
        for value in after:
            if new is not None:
                self._found.setdefault(value, {})[key] = new


class Cache(Generic[T]):
    """Readers see it as a mapping. Only reflectors write to it, one for each namespace or one for all."""

    def __init__(self) -> None:
        self._objects: dict[Key, T] = {}
        self._indexes: list[Index[T]] = []
        self._listeners: list[Listener[T]] = []

    def get(self, key: Key) -> T | None:
        """The object with this key, if there is one."""
        return self._objects.get(key)

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._objects.values()))

    def index(self, values_of: Callable[[T], Iterable[Hashable]]) -> Index[T]:
        """A new index; it knows what is there already."""
        made = Index(values_of)
        for key, item in self._objects.items():
            made.replace(key, None, item)
        self._indexes.append(made)
        return made

    def listen(self, listener: Listener[T]) -> None:
        """Call it after each change; first of all, for each object that is there already."""
        for key, item in list(self._objects.items()):
            listener(Change(key, None, item, initial=True))
        self._listeners.append(listener)

    # ---- for reflectors

    def put(self, item: T, *, initial: bool = False) -> None:
        """It is there, as it is now. Another UID under the same key is told as what it is: a deletion and a birth."""
        key = item.metadata.key
        old = self._objects.get(key)
        if old is not None and old.metadata.uid != item.metadata.uid:
            self.remove(key)
            old = None
        if old is not None and old.metadata.resource_version == item.metadata.resource_version:
            return
        self._change(Change(key, old, item, initial))

    def remove(self, key: Key, last: T | None = None) -> None:
        """It is gone; `last` is its last state where the server told us."""
        old = self._objects.get(key)
        if old is not None:
            self._change(Change(key, old if last is None or last.metadata.uid != old.metadata.uid else last, None))

    def replace(self, items: Iterable[T], *, namespace: str | None = None, initial: bool = False) -> None:
        """This is all there is (in a namespace). What was deleted while nobody looked is found by its absence."""
        there = {item.metadata.key: item for item in items}
        within = [key for key in self._objects if namespace is None or key.namespace == namespace]
        for key in within:
            if key not in there:
                self.remove(key)
        for item in there.values():
            self.put(item, initial=initial)

    def _change(self, change: Change[T]) -> None:
        before = self._objects.get(change.key)
        if change.new is None:
            del self._objects[change.key]
        else:
            self._objects[change.key] = change.new
        for index in self._indexes:
            index.replace(change.key, before, change.new)
        for listener in self._listeners:
            try:
                listener(change)
            except Exception:  # noqa: BLE001 - one listener's bug must not make the cache deaf for all others
                _log.exception("a listener failed on %s", change.key)
