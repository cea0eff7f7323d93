"""Many small blobs as one object: each compressed on its own, found by a catalogue at the end.

    blob blob blob ... catalogue (msgpack, zstd) | its length, 8 bytes | magic, 8 bytes

A blob is read with one range, without the rest. Its hash is that of the plain content and is checked on every read,
so a pack needs no trust: neither in its catalogue nor in who wrote it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from orchestra.sync.errors import Damaged
from orchestra.sync.hashing import hash_of, is_hash

if TYPE_CHECKING:
    import zstandard

_MAGIC = b"ORCHPAK1"
TRAILER = 16
_LEVEL = 1
_CATALOGUE_AT_MOST = 64 << 20
PACK = 4 << 20

_mine = threading.local()


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where in a pack a blob lies, and what becomes of it."""

    hash: str
    offset: int
    stored: int
    size: int
    codec: Literal["plain", "zstd"]


class Pack(msgspec.Struct, frozen=True):
    """A pack that is ready to go. Its name is the hash of its bytes."""

    name: str
    data: bytes
    places: tuple[Place, ...]


def pack_all(blobs: Iterable[tuple[str, bytes]], size: int = PACK) -> Iterator[Pack]:
    """Packs of about `size` bytes with all these (hash, content) pairs. `Damaged` when a content is not its hash."""
    parts: list[bytes] = []
    places: list[Place] = []
    offset = 0
    for name, content in blobs:
        if hash_of(content) != name:
            raise Damaged(f"content does not have the hash {name[:12]} it is called by")
        stored = _compressor().compress(content)
        codec: Literal["plain", "zstd"] = "zstd"
        if len(stored) >= len(content):
            stored, codec = content, "plain"
        places.append(Place(name, offset, len(stored), len(content), codec))
        parts.append(stored)
        offset += len(stored)
        if offset >= size:
            yield _closed(parts, places)
            parts, places, offset = [], [], 0
    if places:
        yield _closed(parts, places)


def _closed(parts: list[bytes], places: list[Place]) -> Pack:
    catalogue = _compressor().compress(msgspec.msgpack.encode(places))
    data = b"".join([*parts, catalogue, len(catalogue).to_bytes(8, "little"), _MAGIC])
    return Pack(hash_of(data), data, tuple(places))


def catalogue_length(trailer: bytes) -> int:
    """How many bytes before the trailer (the last 16 bytes of a pack) are its catalogue."""
    length = int.from_bytes(trailer[:8], "little")
    if len(trailer) != TRAILER or trailer[8:] != _MAGIC or length > _CATALOGUE_AT_MOST:
        raise Damaged("this is no pack")
    return length


def read_catalogue(data: bytes) -> tuple[Place, ...]:
    """The places that a catalogue names. It may come from anybody."""
    try:
        places = msgspec.msgpack.decode(_decompress(data, _CATALOGUE_AT_MOST), type=tuple[Place, ...])
    except msgspec.MsgspecError as error:
        raise Damaged(f"the catalogue of a pack cannot be read: {error}") from error
    if any(not is_hash(place.hash) or min(place.offset, place.stored, place.size) < 0 for place in places):
        raise Damaged("the catalogue of a pack makes no sense")
    return places


def catalogue_of(data: bytes) -> tuple[Place, ...]:
    """The places of a pack that is here as a whole."""
    length = catalogue_length(data[-TRAILER:])
    if length > len(data) - TRAILER:
        raise Damaged("this is no pack: it is shorter than its catalogue")
    return read_catalogue(data[len(data) - TRAILER - length : len(data) - TRAILER])


def content(place: Place, stored: bytes, at_most: int) -> bytes:
    """A blob's content from its stored bytes, never more than `at_most` bytes, and with the right hash."""
    if place.size > at_most:
        raise Damaged(f"blob {place.hash[:12]} says it has {place.size:,} bytes where {at_most:,} were expected")
    plain = stored if place.codec == "plain" else _decompress(stored, place.size)
    if len(plain) != place.size or hash_of(plain) != place.hash:
        raise Damaged(f"blob {place.hash[:12]} is damaged: its content is another")
    return plain


def _decompress(data: bytes, at_most: int) -> bytes:
    import zstandard

    try:
        # What we write says its size up front. Refused before a byte is unpacked: a few bytes that unpack to
        # gigabytes get nowhere. (`max_output_size` of the library is ignored where the size is given.)
        size = zstandard.get_frame_parameters(data).content_size
        if size == zstandard.CONTENTSIZE_UNKNOWN or size > at_most:
            raise Damaged(f"compressed content is larger than the {at_most:,} bytes it may have")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=at_most)
    except zstandard.ZstdError as error:
        raise Damaged(f"compressed content cannot be read: {error}") from error


def _compressor() -> zstandard.ZstdCompressor:
    import zstandard

    if not hasattr(_mine, "compressor"):  # one a thread: they may not be shared
        _mine.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    compressor: zstandard.ZstdCompressor = _mine.compressor
    return compressor
