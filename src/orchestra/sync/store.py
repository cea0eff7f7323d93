"""Snapshots in an object store: packs of blobs by hash, and a manifest that comes last.

    packs/<hash>        blobs that some snapshot was the first to need (packs.py)
    snapshots/<id>      a manifest and the packs it needs; there only if all of them are

Everything is named by its hash, written once, and checked when it is read. The store needs no server of ours and no
lock: two clients that push the same at once write the same bytes under the same names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestra.api.problem import Invalid
from orchestra.sync import packs
from orchestra.sync.blobs import Blobs, FolderSource
from orchestra.sync.errors import Damaged, Missing, NoRoom, SyncError
from orchestra.sync.hashing import hash_of, is_hash
from orchestra.sync.manifest import Manifest, decode
from orchestra.sync.packs import Pack, Place
from orchestra.sync.remote import Item, Remote, ahead, pieces_of
from orchestra.sync.snapshot import Snapshot

_PACKS_ASKED = 256
_PACKS_OF_ONE = 32
_WHOLE = 1 << 20
_ONE_REQUEST = 32 << 20
_AT_ONCE = 8

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


class _Stored(msgspec.Struct, frozen=True):
    manifest: bytes
    packs: dict[str, int]
    """Name and size of each."""


@dataclass(frozen=True)
class Pushed:
    """What it took to bring a snapshot to the store."""

    id: str
    blobs: int
    """Blobs that were missing there."""
    sent: int
    """Bytes that went over the wire."""


class Store:
    """The snapshots below one URL. `cache` is a folder that remembers what lies in which pack."""

    def __init__(self, remote: Remote, cache: Path | None = None) -> None:
        self.remote = remote
        self._cache = cache
        self._places: dict[str, tuple[Place, ...]] = {}

    # ---- writing

    def push(self, snapshot: Snapshot, progress: Progress | None = None) -> Pushed:
        """Bring a snapshot there: what is missing first, the manifest last. When this returns, all of it is there.

        `Changed` where the folder is no longer what the snapshot says: then take another.
        """
        if self.has(snapshot.id):
            return Pushed(snapshot.id, 0, 0)
        known, listed = self.catalogues()
        blobs = snapshot.manifest.blobs()
        lies = chosen(blobs, known, listed)
        missing = [name for name in blobs if name not in lies]
        entries = {entry.content: entry for entry in snapshot.manifest.entries if entry.has_blob}
        used = {pack: listed[pack] for pack in set(lies.values())}
        with FolderSource(snapshot.folder) as source:
            contents = ((name, source.read(entries[name])) for name in missing)
            new = self._send(packs.pack_all(contents), sum(blobs[name] for name in missing), progress)
        self.put_snapshot(snapshot.manifest, used | new)
        return Pushed(snapshot.id, len(missing), sum(new.values()))

    def _send(self, made: Iterable[Pack], total: int, progress: Progress | None) -> dict[str, int]:
        """Send packs while the next ones are made. A few are held at a time, never all."""
        done, sent = 0, dict[str, int]()
        waiting: list[Future[None]] = []
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sync") as pool:
            for pack in made:
                while len(waiting) >= _AT_ONCE:
                    waiting.pop(0).result()
                waiting.append(pool.submit(self._put, pack.name, pack.data, pack.places))
                sent[pack.name] = len(pack.data)
                done += sum(place.size for place in pack.places)
                if progress:
                    progress(done, total)
            for future in waiting:
                future.result()
        return sent

    def put_pack(self, name: str, data: bytes, at_most: int) -> None:
        """Keep a pack that somebody sent: its hash, and every blob in it (up to `at_most` bytes each), are checked."""
        if hash_of(data) != name:
            raise Damaged(f"pack {name[:12]} arrived damaged: its hash is another")
        places = packs.catalogue_of(data)
        for place in places:
            packs.content(place, data[place.offset : place.offset + place.stored], at_most)
        self._put(name, data, places)

    def _put(self, name: str, data: bytes, places: tuple[Place, ...]) -> None:
        key = f"packs/{name}"
        if len(data) > _ONE_REQUEST or not self.remote.put_if_absent(key, data):
            found = self.remote.look(key)
            if found is None or found.size != len(data):  # large, or torn by a loss of power: the name says what it is
                self.remote.put_named_by_hash(key, lambda: pieces_of(data), len(data))
        self._remember(name, places)

    def put_snapshot(self, manifest: Manifest, used: dict[str, int]) -> str:
        """Publish a manifest. Refused while a pack it needs, or a blob in them, is not there."""
        id = manifest.id
        there = {place.hash for pack in used for place in self._places_of(pack, used[pack])}
        lacking = sorted(set(manifest.blobs()) - there)
        if lacking:
            raise Missing(f"{len(lacking)} blobs of snapshot {id[:12]} are not in {self.remote.url}")
        stored = msgspec.msgpack.encode(_Stored(manifest.encode(), used))
        self.remote.put_if_absent(f"snapshots/{id}", stored)  # the same manifest from other packs is as good
        return id

    # ---- reading

    def has(self, id: str) -> bool:
        """Whether a snapshot is there, and so all of it."""
        return self.remote.look(f"snapshots/{_checked(id)}") is not None

    def missing(self, hashes: Iterable[str]) -> list[str]:
        """Which of these blobs are not in any of the newer packs: those are to be sent."""
        known, _ = self.catalogues()
        there = {place.hash for places in known.values() for place in places}
        return [name for name in hashes if name not in there]

    def manifest(self, id: str) -> Manifest:
        """A snapshot's manifest, checked: its hash, and that it is harmless."""
        return self._stored(id)[0]

    def packs_of(self, id: str) -> dict[str, int]:
        """The packs that a snapshot needs, with their sizes."""
        return self._stored(id)[1]

    def pull(
        self, id: str, into: Blobs, progress: Progress | None = None, only: Collection[str] | None = None
    ) -> Manifest:
        """Bring a snapshot's blobs here (or `only` these), those that are not here yet. Every one is checked."""
        manifest, used = self._stored(id)
        asked = {name: size for name, size in manifest.blobs().items() if only is None or name in only}
        wanted = {name: size for name, size in asked.items() if not into.has(name)}
        everything = len(wanted) == len(manifest.blobs())
        total, done = sum(wanted.values()), 0

        def read(pack: str) -> list[tuple[Place, bytes]]:
            return self._read(pack, used[pack], wanted, whole=everything)

        # Packs arrive on threads; files are written on one, for Python's threads only stand in each other's way there.
        for came in ahead(read, used if wanted else (), _AT_ONCE):
            for place, stored in came:
                _keep(into, place.hash, packs.content(place, stored, wanted[place.hash]))
                done += place.size
            if progress:
                progress(done, total)
        lost = [name for name in wanted if not into.has(name)]
        if lost:
            raise Missing(f"{len(lost)} blobs of snapshot {id[:12]} are not in {self.remote.url}: packs were removed")
        return manifest

    def catalogues(self) -> tuple[dict[str, tuple[Place, ...]], dict[str, int]]:
        """What lies in the newer packs, and the sizes of those packs."""
        newest = sorted(self._packs(), key=lambda item: item.modified, reverse=True)[:_PACKS_ASKED]
        sizes = {item.key.removeprefix("packs/"): item.size for item in newest}
        read = self.remote.each(lambda pack: self._places_of(pack, sizes[pack]), sizes)
        return dict(zip(sizes, read, strict=True)), sizes

    def _packs(self) -> list[Item]:
        return [item for item in self.remote.listing("packs") if is_hash(item.key.removeprefix("packs/"))]

    def _stored(self, id: str) -> tuple[Manifest, dict[str, int]]:
        data = self.remote.get(f"snapshots/{_checked(id)}")
        try:
            stored = msgspec.msgpack.decode(data, type=_Stored)
            if not all(is_hash(pack) for pack in stored.packs):
                raise Damaged(f"snapshot {id[:12]} in {self.remote.url} names things that are no packs")
            return decode(stored.manifest, id), stored.packs
        except (msgspec.MsgspecError, Invalid) as error:
            raise Damaged(f"snapshot {id[:12]} in {self.remote.url} is damaged: {error}") from error

    def _read(self, pack: str, size: int, wanted: dict[str, int], *, whole: bool) -> list[tuple[Place, bytes]]:
        if whole or (size <= _WHOLE and pack not in self._places):
            data = self.remote.get(f"packs/{pack}")
            if hash_of(data) != pack:
                raise Damaged(f"pack {pack[:12]} in {self.remote.url} is damaged: its hash is another")
            places = packs.catalogue_of(data)
            self._remember(pack, places)
            return [(p, data[p.offset : p.offset + p.stored]) for p in places if p.hash in wanted]
        needed = [place for place in self._places_of(pack, size) if place.hash in wanted]
        ranges = [(place.offset, place.offset + place.stored) for place in needed if place.stored]
        read = iter(self.remote.get_ranges(f"packs/{pack}", ranges))
        return [(place, next(read) if place.stored else b"") for place in needed]

    def _places_of(self, pack: str, size: int) -> tuple[Place, ...]:
        places = self._places.get(pack) or self._remembered(pack)
        if places is None:
            key = f"packs/{pack}"
            tail = self.remote.get_range(key, max(0, size - 65536), size)
            length = packs.catalogue_length(tail[-packs.TRAILER :])
            if length > len(tail) - packs.TRAILER:
                tail = self.remote.get_range(key, max(0, size - packs.TRAILER - length), size)
            places = packs.read_catalogue(tail[len(tail) - packs.TRAILER - length : len(tail) - packs.TRAILER])
            self._remember(pack, places)
        self._places[pack] = places
        return places

    def _remembered(self, pack: str) -> tuple[Place, ...] | None:
        if self._cache is None:
            return None
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.msgpack.decode((self._cache / pack).read_bytes(), type=tuple[Place, ...])
        return None

    def _remember(self, pack: str, places: tuple[Place, ...]) -> None:
        self._places[pack] = places
        if self._cache is not None:
            with contextlib.suppress(OSError):
                self._cache.mkdir(parents=True, exist_ok=True)
                draft = self._cache / f".{pack}.{id(places)}"
                draft.write_bytes(msgspec.msgpack.encode(places))
                draft.replace(self._cache / pack)


def chosen(blobs: dict[str, int], known: dict[str, tuple[Place, ...]], sizes: dict[str, int]) -> dict[str, str]:
    """From which pack each blob is taken. Few packs, large ones first: the dregs of many small packs are sent anew,
    so that a folder that was edited a thousand times is not read from a thousand packs.
    """
    lies: dict[str, str] = {}
    used: set[str] = set()
    most = _PACKS_OF_ONE + sum(blobs.values()) // packs.PACK
    for pack in sorted(known, key=lambda pack: -sizes[pack]):
        useful = [place.hash for place in known[pack] if place.hash in blobs and place.hash not in lies]
        if useful and len(used) < most:
            used.add(pack)
            lies.update(dict.fromkeys(useful, pack))
    return lies


def _keep(into: Blobs, name: str, content: bytes) -> None:
    try:
        into.add(name, content)
    except OSError as error:
        raise NoRoom(f"no room for the workspace's files: {error.strerror}") from error


def _checked(id: str) -> str:
    if not is_hash(id):
        raise SyncError(f"{id[:80]!r} is no snapshot id")
    return id
