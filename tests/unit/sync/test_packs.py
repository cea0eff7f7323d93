"""Packs: what goes in comes out, and nothing else does."""

import contextlib
import os

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from orchestra.sync import packs
from orchestra.sync.errors import Damaged
from orchestra.sync.hashing import hash_of


@given(contents=st.lists(st.binary(max_size=200), max_size=20), size=st.integers(1, 500))
def test_every_blob_comes_back(contents: list[bytes], size: int) -> None:
    blobs = {hash_of(content): content for content in contents}
    found = {}
    for pack in packs.pack_all(blobs.items(), size):
        assert pack.name == hash_of(pack.data)
        assert packs.catalogue_of(pack.data) == pack.places
        for place in pack.places:
            found[place.hash] = packs.content(place, pack.data[place.offset :][: place.stored], 200)
    assert found == blobs


def test_content_under_a_wrong_hash_is_not_packed() -> None:
    with pytest.raises(Damaged):
        list(packs.pack_all([("0" * 64, b"something else")]))


@given(data=st.data())
def test_no_flipped_bit_goes_unnoticed(data: st.DataObject) -> None:
    content = b"some text that compresses, some text that compresses" * 3
    pack = next(packs.pack_all([(hash_of(content), content)]))
    place = pack.places[0]
    at = data.draw(st.integers(0, place.stored - 1))
    damaged = bytearray(pack.data[: place.stored])
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(Damaged):
        assert packs.content(place, bytes(damaged), 1000) == content  # a bit of zstd's frame that means nothing


def test_a_blob_that_unpacks_to_more_than_it_may_is_stopped() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    place = packs.Place(hash_of(b""), 0, len(bomb), 100, "zstd")
    with pytest.raises(Damaged, match="larger than the 100 bytes"):
        packs.content(place, bomb, 100)
    with pytest.raises(Damaged, match="says it has"):
        packs.content(packs.Place(hash_of(b""), 0, len(bomb), 1 << 26, "zstd"), bomb, 100)


def test_rubbish_is_no_pack() -> None:
    for rubbish in (b"", os.urandom(100), b"x" * 100 + (1 << 40).to_bytes(8, "little") + b"ORCHPAK1"):
        with pytest.raises(Damaged):
            packs.catalogue_of(rubbish)
