"""What is to be moved for one worker, and where; and how it is told. Read from a file or a variable, never a flag:
URLs may be long, and credentials are not among them (they come from the environment, a role, or a mounted Secret).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from orchestra.sync.errors import SyncError

_EVERY_S = 2.0


class Git(msgspec.Struct, frozen=True):
    """A repository, and a branch, tag or commit of it."""

    url: str
    ref: str | None = None


class Served(msgspec.Struct, frozen=True, rename="camel"):
    """A snapshot in the workspace store of a cluster."""

    url: str
    snapshot: str
    token_file: str


class Orders(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The orders of one worker."""

    job: str = ""
    uid: str = ""
    attempt: int = 1
    node: int = 0
    nodes: int = 1
    workspace: Served | None = None
    """Code from the workspace store."""
    git: Git | None = None
    """Code from a repository, instead of a URL."""
    code: str | None = None
    code_folder: str | None = None
    data: str | None = None
    data_folder: str | None = None
    output: str | None = None
    output_folder: str | None = None
    shared_output: bool = False
    """Whether all nodes have one output folder: then the first of them brings it and sends it, for all."""
    interval: float = 600.0
    quiet: float = 20.0
    """Seconds without a touch after which a foreign file counts as complete."""
    grace: float = 30.0
    """Seconds that the last upload has after a stop."""
    heartbeat: float = 10.0
    """Seconds between two signs of life on the output."""
    logs: str | None = None
    """Folder with the agent's logs, sent as `log.txt`."""
    worker: str = ""
    """Name of this worker's pod."""
    socket: str | None = None
    """Where its agent takes orders about new code."""
    shared_code: bool = False
    """All workers see one folder: the first one changes it."""
    state: str
    """Folder for what one step has to know of another: what was resumed from, hashes, the result."""


def read_orders(source: str) -> Orders:
    """Orders from a file, or from a variable (`env:NAME`)."""
    try:
        data = os.environ.get(source[4:], "").encode() if source.startswith("env:") else Path(source).read_bytes()
        return msgspec.json.decode(data, type=Orders)
    except (OSError, msgspec.MsgspecError) as error:
        raise SyncError(f"{source}: the orders cannot be read: {error}") from error


def plain_only(url: str) -> bool:
    """Whether everything is to lie as it is, checkpoints too: `s3://bucket/path?layout=plain`."""
    return parse_qs(urlsplit(url).query).get("layout", ["auto"])[-1] == "plain"


def without_query(url: str) -> str:
    """The address itself."""
    return urlsplit(url)._replace(query="").geturl()


def say(text: str) -> None:
    """One line for the log."""
    print(text, flush=True)


class Told:
    """Progress in words, now and then."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._clock = what, clock
        self._begun = self._last = clock()

    def __call__(self, files: int, files_in_all: int, size: int, size_in_all: int) -> None:
        """So far."""
        now = self._clock()
        if now - self._last < _EVERY_S:
            return
        self._last = now
        rate = size / max(1e-9, now - self._begun)
        left = (size_in_all - size) / rate if rate else 0.0
        done = f"{files:,} of {files_in_all:,} files, {mib(size)} of {mib(size_in_all)}"
        say(f"{self._what}: {done}, {mib(int(rate))}/s, {left:.0f} s left")

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return self._clock() - self._begun


def mib(size: int) -> str:
    """A size as people read it."""
    return f"{size / (1 << 20):,.1f} MiB"


def fail(error: Exception) -> int:
    """The end, said."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    return 1
