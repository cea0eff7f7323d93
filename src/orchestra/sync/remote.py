"""A place in an object store, by URL: `s3:// gs:// az:// file://`. Retries, pace and error texts are the same for all.

Only the blocking calls of obstore are used: its asynchronous ones have aborted interpreters at their exit. A process
that forks after having used it hangs, so a `Remote` refuses to work in a child.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from orchestra.sync.errors import Missing, SyncError, Taken
from orchestra.sync.faults import AlreadyThere, fault_of
from orchestra.sync.pace import Pace, Patience

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Given = TypeVar("Given")
Result = TypeVar("Result")

SCHEMES = ("file", "s3", "gs", "az")
RANGE = 8 << 20
PART = 16 << 20
SMALL_AT_ONCE = 32
PARTS_AT_ONCE = 6
_REQUEST_S = 120
_CONNECT_S = 5


@dataclass(frozen=True, slots=True)
class Item:
    """One object, as a listing shows it."""

    key: str
    size: int
    etag: str | None
    modified: datetime


class Remote:
    """Keys below a URL. Everything here blocks; several threads may share one."""

    def __init__(self, url: str, *, patience: Patience | None = None, create: bool = True) -> None:
        self.url = shown(url)
        self._folder = Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None
        self._pid = os.getpid()
        self._patience = patience or Patience()
        self.pace = Pace(SMALL_AT_ONCE)
        self._store = _open(url, retries=0, create=create)
        # Parts of one large object are retried by the library itself: we would have to begin the object anew.
        self._patient = _open(url, retries=8, create=create)

    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object; False when the very same is there already. `Taken` when another one is.

        An answer can get lost on the way back. So that a retry does not take our own object for somebody else's,
        what is there is compared: let the content tell who wrote it.
        """
        if self.put_if_absent(key, data):
            return True
        if self.get(key) != data:
            raise Taken(f"{self.url}/{key} is there already, with other content")
        return False

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object in one request; False when there is one already, whatever it holds."""
        import obstore

        def put() -> bool:
            try:
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except Exception as error:
                if isinstance(fault_of(error), AlreadyThere):
                    return False
                raise
            self._settle(key)
            return True

        return self._call(f"write {key}", put)

    def put_named_by_hash(self, key: str, pieces: Callable[[], Iterable[bytes]], size: int) -> None:
        """Write an object whose key is its hash, so that writing it twice does no harm.

        `pieces` is called for each try, and raises at the end where the content is not what the key promises:
        then nothing appears.
        """
        import obstore

        large = size > PART

        def put() -> None:
            source = pieces()
            content: Any = iter(source) if large else b"".join(source)
            obstore.put(
                self._patient if large else self._store,
                key,
                content,
                use_multipart=large,
                chunk_size=PART,
                max_concurrency=PARTS_AT_ONCE,
            )
            self._settle(key)

        self._call(f"write {key}", put)

    def put(self, key: str, pieces: Callable[[], Iterable[bytes]], size: int) -> None:
        """Write or replace an object. Readers see the old one or the new one."""
        self.put_named_by_hash(key, pieces, size)

    def get(self, key: str) -> bytes:
        """A whole small object."""
        import obstore

        return self._call(f"read {key}", lambda: bytes(obstore.get(self._store, key).bytes()))

    def get_range(self, key: str, start: int, end: int, etag: str | None = None) -> bytes:
        """Bytes `start` to `end` of an object; with `etag`, only of exactly that one (`Changed` otherwise)."""
        return bytes(self.view_range(key, start, end, etag))

    def view_range(self, key: str, start: int, end: int, etag: str | None = None) -> memoryview:
        """The same as the library holds them, not copied: of a large object a copy costs more than all the rest."""
        import obstore

        if end <= start:
            return memoryview(b"")

        def read() -> memoryview:
            if etag is None:
                return memoryview(obstore.get_range(self._store, key, start=start, end=end))
            return memoryview(obstore.get(self._store, key, options={"range": (start, end), "if_match": etag}).bytes())

        return self._call(f"read {key}", read)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several ranges of one object; neighbours come in one request."""
        import obstore

        starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
        if not ranges:
            return []
        return self._call(
            f"read {key}", lambda: [bytes(b) for b in obstore.get_ranges(self._store, key, starts=starts, ends=ends)]
        )

    def look(self, key: str) -> Item | None:
        """What is at a key, or None."""
        import obstore

        try:
            found = self._call(f"look for {key}", lambda: obstore.head(self._store, key))
        except Missing:
            return None
        return Item(key, found["size"], found["e_tag"], found["last_modified"])

    def listing(self, prefix: str = "") -> list[Item]:
        """All objects below a folder of keys. Folder markers, which some tools write, are not objects."""
        import obstore

        def read() -> list[Item]:
            return [
                Item(found["path"], found["size"], found["e_tag"], found["last_modified"])
                for chunk in obstore.list(self._store, prefix or None)
                for found in chunk
                if not (found["path"].endswith("/") and found["size"] == 0)
            ]

        return self._call(f"list {prefix}", read)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; those that are not there are no error."""
        import obstore

        for key in keys:
            try:
                self._call(f"delete {key}", lambda key=key: obstore.delete(self._store, key))  # type: ignore[misc]
            except Missing:
                continue

    def each(
        self, work: Callable[[Given], Result], over: Iterable[Given], at_once: int = SMALL_AT_ONCE
    ) -> list[Result]:
        """Do something for many keys at once. The first error ends the rest and is raised."""
        given = list(over)
        if len(given) <= 1:
            return [work(one) for one in given]
        with ThreadPoolExecutor(min(at_once, len(given)), thread_name_prefix="sync") as pool:
            futures = [pool.submit(work, one) for one in given]
            done, pending = wait(futures, return_when=FIRST_EXCEPTION)
            for future in pending:
                future.cancel()
            for future in done:
                if future.exception() is not None:
                    pool.shutdown(cancel_futures=True)
                    break
            return [future.result() for future in futures if not future.cancelled()]

    def _settle(self, key: str) -> None:
        """Wait until the disk has it, where the store is a folder: what was reported as there outlives a power cut."""
        if self._folder is None:
            return
        for path in (self._folder / key, (self._folder / key).parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _call(self, what: str, action: Callable[[], Result]) -> Result:
        if os.getpid() != self._pid:
            raise SyncError("this process was forked from one that used the object store; start a new program instead")
        return self._patience.call(lambda: self._once(what, action), self.pace)

    def _once(self, what: str, action: Callable[[], Result]) -> Result:
        from obstore.exceptions import BaseError

        try:
            return action()
        except (BaseError, OSError) as error:
            raise fault_of(error).told(what, self.url) from None  # the original text may hold a signed URL


def _open(url: str, *, retries: int, create: bool) -> ObjectStore:
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise SyncError(f"{shown(url)}: the URL must begin with {', '.join(f'{one}://' for one in SCHEMES)}")
    try:
        if parts.scheme == "file":
            folder = Path(unquote(parts.path))
            if create:
                folder.mkdir(parents=True, exist_ok=True)
            return LocalStore(folder)
        return from_url(
            url.rstrip("/"),
            client_options={
                "timeout": timedelta(seconds=_REQUEST_S),
                "connect_timeout": timedelta(seconds=_CONNECT_S),
                "allow_http": _plain_http_is_meant(),
            },
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=300)},
        )
    except (BaseError, OSError, ValueError) as error:
        raise fault_of(error).told("open", shown(url)) from None


def located(url: str, *, patience: Patience | None = None, create: bool = True) -> tuple[Remote, str]:
    """A URL that may name a folder or a single object: the place above it, and the last part of its name."""
    parts = urlsplit(url.rstrip("/"))
    above, _, last = parts.path.rpartition("/")
    if not last:
        return Remote(url, patience=patience, create=create), ""
    return Remote(parts._replace(path=above or "/").geturl(), patience=patience, create=create), unquote(last)


def _plain_http_is_meant() -> bool:
    """Whether the user named an endpoint without TLS: a server of their own, or a test's."""
    names = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
    return any(os.environ.get(name, "").startswith("http://") for name in names) or (
        os.environ.get("AWS_ALLOW_HTTP", os.environ.get("AZURE_ALLOW_HTTP", "")).lower() == "true"
    )


def shown(url: str) -> str:
    """A URL as it may be printed: without user, password, or query (which may be a signature)."""
    parts = urlsplit(url)
    host = parts.netloc.rsplit("@", 1)[-1]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/") if parts.scheme else url.split("?")[0]


def ahead(work: Callable[[Given], Result], over: Iterable[Given], at_once: int) -> Iterator[Result]:
    """Results in order, a few of them worked on ahead of whoever takes them; never more, for they may be large."""
    with ThreadPoolExecutor(at_once, thread_name_prefix="sync") as pool:
        coming: deque[Future[Result]] = deque()
        try:
            for one in over:
                coming.append(pool.submit(work, one))
                if len(coming) > at_once:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()


def pieces_of(data: bytes, size: int = PART) -> Iterator[bytes]:
    """Content in pieces, as `put` wants it."""
    for start in range(0, len(data), size):
        yield data[start : start + size]
