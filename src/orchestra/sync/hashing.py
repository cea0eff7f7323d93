"""The one hash: blake3, 256 bits, written as 64 hexadecimal digits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blake3 import blake3
    from typing_extensions import Buffer

_LARGE = 1 << 20
_HASH = re.compile(r"[0-9a-f]{64}\Z")


def hash_of(data: Buffer) -> str:
    """The hash of some bytes."""
    from blake3 import blake3

    large = len(memoryview(data)) >= _LARGE
    return blake3(data, max_threads=blake3.AUTO if large else 1).hexdigest()


def hasher() -> blake3:
    """A hash that grows with `update`; several threads, for long content."""
    from blake3 import blake3

    return blake3(max_threads=blake3.AUTO)


def is_hash(text: str) -> bool:
    """Whether a text could be a hash, and is therefore safe as a file name."""
    return _HASH.match(text) is not None
