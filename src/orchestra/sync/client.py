"""The workspace store from outside: pushing a snapshot in parts that any proxy lets through, and pulling one by id."""

from __future__ import annotations

import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from orchestra.sync import packs
from orchestra.sync.blobs import FolderSource
from orchestra.sync.errors import Busy, Damaged, Missing, NoAccess, SyncError, Unreachable
from orchestra.sync.hashing import hash_of
from orchestra.sync.server import PART_BYTES, PART_HEADER, TOKEN_HEADER
from orchestra.sync.snapshot import Snapshot
from orchestra.sync.store import Progress, Pushed, Store

_ASKED_AT_ONCE = 5_000
_PACK = 8 << 20
_TIMEOUT_S = 60

Ask = Callable[[str, str, bytes | None, dict[str, str]], bytes]
"""Method, path, body, headers -> the answer's body. Raises `SyncError`."""


def push(taken: Snapshot, ask: Ask, progress: Progress | None = None) -> Pushed:
    """Bring a snapshot to the store. Cut off at any moment and called again, it goes on where it was."""
    wanted = {entry.content: entry for entry in taken.manifest.entries if entry.has_blob}
    if _is_there(taken.id, ask):
        return Pushed(taken.id, 0, 0)
    names, missing = list(wanted), list[str]()
    for start in range(0, len(names), _ASKED_AT_ONCE):
        asked = msgspec.json.encode(names[start : start + _ASKED_AT_ONCE])
        missing += msgspec.json.decode(ask("POST", "/v1/missing", asked, {}), type=list[str])
    total, done, sent = sum(wanted[name].size for name in missing), 0, 0
    with FolderSource(taken.folder) as source:
        for pack in packs.pack_all(((name, source.read(wanted[name])) for name in missing), _PACK):
            sent += _upload(pack.name, pack.data, ask)
            ask("POST", f"/v1/packs/{pack.name}", b"", {})
            done += sum(place.size for place in pack.places)
            if progress:
                progress(done, total)
    _upload(taken.id, taken.manifest.encode(), ask)
    ask("POST", f"/v1/snapshots/{taken.id}", b"", {})
    return Pushed(taken.id, len(missing), sent)


def _is_there(id: str, ask: Ask) -> bool:
    try:
        ask("GET", f"/v1/snapshots/{id}", None, {})
    except Missing:
        return False
    return True


def _upload(name: str, data: bytes, ask: Ask) -> int:
    """Bytes in parts, each with its hash, from where an earlier try was cut off. Returns how many were sent."""
    # One part is sent without asking: that costs less than the question.
    have = int(json.loads(ask("GET", f"/v1/uploads/{name}", None, {}))["have"]) if len(data) > PART_BYTES else 0
    at = begun = min(have, len(data))
    while at < len(data):
        part = data[at : at + PART_BYTES]
        ask("PUT", f"/v1/uploads/{name}/{at}", part, {PART_HEADER: hash_of(part)})
        at += len(part)
    return len(data) - begun


class DirectAsk:
    """The store by its own address, as a pod reaches it. The token's file is read each time: it is replaced hourly."""

    def __init__(self, url: str, token: Callable[[], str], seconds: float = 120.0) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise SyncError(f"{url}: the workspace store's address begins with http:// or https://")
        self.url, self._token, self._seconds = url.rstrip("/"), token, seconds

    def __call__(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        """One request, again while the store is away. Everything here may be asked twice."""
        until, bound = time.monotonic() + self._seconds, 0.1
        while True:
            try:
                return self._once(method, path, body, headers)
            except Unreachable:
                if time.monotonic() > until:
                    raise
            time.sleep(random.uniform(0, bound))  # noqa: S311 -- so that a thousand workers do not come back at once
            bound = min(5.0, bound * 2)

    def _once(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        request = urllib.request.Request(  # noqa: S310 -- http or https, checked
            f"{self.url}{path}", data=body, method=method, headers={**headers, TOKEN_HEADER: self._token()}
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                data: bytes = answer.read()
                return data
        except urllib.error.HTTPError as error:
            raise refusal(error.code, error.read()[:4096], self.url) from None
        except (OSError, ValueError) as error:
            raise Unreachable(f"{self.url} does not answer: {getattr(error, 'reason', None) or error}") from None


def refusal(code: int, body: bytes, where: str) -> SyncError:
    """What the store said, as an error of ours."""
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {code}"
    kind = {401: NoAccess, 403: NoAccess, 404: Missing, 409: Busy, 422: Damaged}.get(code, Unreachable)
    return kind(f"the workspace store at {where}: {message}")


class _Served:
    """Enough of a `Remote` for a `Store` to pull from."""

    def __init__(self, ask: Ask, url: str) -> None:
        self._ask, self.url = ask, url

    def get(self, key: str) -> bytes:
        """A whole object."""
        return self._ask("GET", f"/v1/{key}", None, {})

    def get_range(self, key: str, start: int, end: int, etag: str | None = None) -> bytes:  # noqa: ARG002
        """Part of one."""
        return self._ask("GET", f"/v1/{key}?from={start}&to={end}", None, {}) if end > start else b""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Parts of one."""
        return [self.get_range(key, start, end) for start, end in ranges]


def served_store(url: str, token_file: Path) -> Store:
    """The store as a worker sees it: to pull from."""
    return served_by(DirectAsk(url, lambda: token_file.read_text().strip()), url)


def served_by(ask: Ask, url: str = "the workspace store") -> Store:
    """The store as whoever asks this way sees it: to pull from."""
    remote: Any = _Served(ask, url)
    return Store(remote)
