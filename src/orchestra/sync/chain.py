"""Which checkpoints of an output count, and in which order: fences, manifests, and the chain between them.

    fence/<n>                    one for each attempt (and elastic round), create-only: who it is, what it resumed from
    manifests/<n>-<step>.json    a complete checkpoint, create-only, written last
    parts/<n>-<step>/<node>.json what one node of several contributed
    data/<blake3>                contents

A reader begins at the highest fence and follows what each attempt resumed from. What an older attempt publishes after
a newer one has begun is not in that chain, so a late writer does no harm, even one that never looks.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import msgspec

from orchestra.sync.errors import Damaged, Missing, Taken
from orchestra.sync.remote import Remote

_FENCE = re.compile(r"fence/(\d{1,12})\Z")
_MANIFEST = re.compile(r"manifests/(\d{1,12})-(\d{1,15})\.json\Z")
_TRIES = 100


class Holder(msgspec.Struct, frozen=True, rename="camel"):
    """Whose attempt a fence is."""

    job: str
    uid: str
    attempt: int
    round: int = 0
    resumed_from: str | None = None
    """Name (`<n>-<step>`) of the checkpoint it goes on from; None when it began anew."""
    token: str = ""
    """Tells our own fence from another's when an answer was lost on the way."""


class Fence(msgspec.Struct, frozen=True):
    """The right to publish under a number. Coordination: whoever has an older one is not stopped, but ignored."""

    n: int
    holder: Holder


class Name(msgspec.Struct, frozen=True, order=True):
    """A checkpoint's name: its fence and its step."""

    n: int
    step: int

    def __str__(self) -> str:
        return f"{self.n}-{self.step}"

    @property
    def key(self) -> str:
        """Where its manifest lies."""
        return f"manifests/{self}.json"

    @staticmethod
    def parse(text: str) -> Name | None:
        """A name from its text, or None."""
        found = re.fullmatch(r"(\d{1,12})-(\d{1,15})", text)
        return Name(int(found[1]), int(found[2])) if found else None


def take_fence(remote: Remote, holder: Holder) -> Fence:
    """The next free number, ours from now on. Earlier attempts' later checkpoints no longer count."""
    marked = msgspec.structs.replace(holder, token=holder.token or secrets.token_hex(16))
    data = msgspec.json.encode(marked)
    n = max(fences(remote), default=0)
    for _ in range(_TRIES):
        n += 1
        try:
            remote.put_new(f"fence/{n}", data)
            return Fence(n, marked)
        except Taken:
            continue
    raise Taken(f"{_TRIES} others took a fence in {remote.url} before us")


def newest_fence(remote: Remote) -> Fence | None:
    """Who began last on this output: the one to ask whether it still lives before a second job starts here."""
    numbers = fences(remote)
    return _read(remote, max(numbers)) if numbers else None


def fences(remote: Remote) -> set[int]:
    """All numbers that were ever taken."""
    return {int(found[1]) for item in remote.listing("fence") if (found := _FENCE.match(item.key))}


def chain(remote: Remote) -> Iterator[Name]:
    """The checkpoints that count, newest first. Says nothing about whether they are whole."""
    published: dict[int, list[int]] = {}
    for item in remote.listing("manifests"):
        if found := _MANIFEST.match(item.key):
            published.setdefault(int(found[1]), []).append(int(found[2]))
    n, last = max(fences(remote), default=0), None
    while n:
        fence = _read(remote, n)
        for step in sorted(published.get(n, []), reverse=True):
            if last is None or step <= last:
                yield Name(n, step)
        before = Name.parse(fence.holder.resumed_from or "")
        # Backwards only: a damaged or hostile fence must not send us in circles.
        n, last = (before.n, before.step) if before is not None and before.n < n else (0, None)


def _read(remote: Remote, n: int) -> Fence:
    try:
        return Fence(n, msgspec.json.decode(remote.get(f"fence/{n}"), type=Holder))
    except (msgspec.MsgspecError, Missing) as error:
        raise Damaged(
            f"{remote.url}/fence/{n} is damaged: {error}; without it nobody knows what it went on from"
        ) from error
