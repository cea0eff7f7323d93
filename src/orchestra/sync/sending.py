"""While it runs and at its end: outputs and checkpoints go to the store, complete files only, with the log.

    <url>/out/...            everything the job wrote, as people browse it, with a marker that names what is complete
    <url>/checkpoints/...    the library's checkpoints (chain.py): content first, manifest last
    <url>/log.txt            the log; `log-<node>.txt` of further nodes

With `?layout=plain` behind the URL the checkpoints lie in `out/` too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from orchestra.sync.company import Company
from orchestra.sync.errors import Changed, SyncError
from orchestra.sync.fetching import CHECKPOINTS, EARLIER, OUT, RESUMED, log_name
from orchestra.sync.hashing import hash_of
from orchestra.sync.index import Index
from orchestra.sync.moving import Orders, mib, plain_only, say, without_query
from orchestra.sync.outputs import Fence, Holder, Outputs
from orchestra.sync.remote import Remote
from orchestra.sync.transfer import up

_STEP = re.compile(r"step-(\d+)(?:\.(\d+))?\Z")
_FENCES = "fence"
_GROWING = ("*.log", "log.txt", "events.out.tfevents.*", "*.jsonl")
_ROTATED = re.compile(r"attempt-(\d+)\.log(?:\.(\d+))?\Z")


@dataclass
class Sent:
    """What is in the store by now, for certain."""

    files: int = 0
    bytes: int = 0
    checkpoint: str | None = None
    seconds: float = 0.0
    waiting: list[str] = field(default_factory=list)


class Sender:
    """The uploads of one worker."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._folder, url = Path(orders.output_folder or "."), without_query(orders.output or "").rstrip("/")
        self._remote = Remote(url)
        self._plain = plain_only(orders.output or "")
        self._state = Path(orders.state)
        self._state.mkdir(parents=True, exist_ok=True)
        self._outputs = Outputs(Remote(f"{url}/{CHECKPOINTS}"), index=self._state / "checkpoint-index")
        self._fence: Fence | None = None
        self._published: set[str] = set()
        self._log_sent = ""
        self.sent = Sent()

    def run(self, stop: threading.Event) -> int:
        """Rounds until the stop, then one more for all that is there. Returns the exit code."""
        say(f"outputs go to {self._remote.url} every {self._orders.interval:g} s, and at the end")
        company = Company(self._remote, self._orders) if self._orders.uid and self._orders.node == 0 else None
        if company is not None:
            company.stay()
        try:
            return self._rounds(stop)
        finally:
            if company is not None:
                company.leave()

    def _rounds(self, stop: threading.Event) -> int:
        while not stop.wait(self._orders.interval):
            self._told_round(self._orders.quiet)
        began = time.monotonic()
        try:
            self.round(0.0)
        except (SyncError, OSError) as error:
            self._result("failed", str(error))
            say(f"error: not everything is in {self._remote.url}: {error}")
            return 1
        took = time.monotonic() - began
        self._result("synced", "")
        at = f", checkpoint {self.sent.checkpoint}" if self.sent.checkpoint else ""
        say(f"all outputs are in {self._remote.url}: {self.sent.files:,} files, {mib(self.sent.bytes)}{at}; "
            f"the last round took {took:.1f} s")  # fmt: skip
        if took > self._orders.grace:
            say(f"warning: that is longer than the {self._orders.grace:.0f} s that a stop allows")
        return 0

    def _told_round(self, quiet: float) -> None:
        try:
            self.round(quiet)
        except (SyncError, OSError) as error:
            say(f"warning: this round of uploads failed and is done again in {self._orders.interval:.0f} s: {error}")

    def round(self, quiet: float) -> None:
        """One round: what is complete by now. `quiet=0`: all writers are gone."""
        began = time.monotonic()
        if self._folder.is_dir() and not (self._orders.shared_output and self._orders.node):
            if not self._plain and self._orders.node == 0:
                self._checkpoints()
            moved = up(
                self._folder, self._remote, OUT, quiet=quiet, growing=_GROWING, skip=None if self._plain else _is_ours,
                index=Index(self._state / "index", self._folder),
            )  # fmt: skip
            self.sent.files += moved.files
            self.sent.bytes += moved.bytes
            self.sent.waiting = list(moved.abandoned)
            if moved.files:
                waiting = f"; {len(moved.abandoned)} still being written" if moved.abandoned else ""
                say(f"sent {moved.files:,} files, {mib(moved.bytes)} in {time.monotonic() - began:.1f} s{waiting}")
        self._log()

    # ---- checkpoints of our library

    def _complete(self) -> list[Path]:
        """Folders of complete checkpoints, relative."""
        found = []
        for at, folders, _ in os.walk(self._folder):  # which passes over what is renamed meanwhile
            found += [Path(at, name) for name in folders if _is_ours(Path(at, name))]
            folders[:] = [name for name in folders if not _STEP.match(name) and not name.startswith("tmp-")]
        return sorted(path.relative_to(self._folder) for path in found)

    def _checkpoints(self) -> None:
        """The newest that is complete. The first node has them whole, wherever the others write."""
        complete = self._complete()
        if not complete:
            return
        newest = max(complete, key=lambda folder: _place(folder.name))
        if str(newest) in self._published:
            return
        files = [path for path in (self._folder / newest).rglob("*") if path.is_file()]
        fences = self._folder / newest.parent / _FENCES
        files += [path for path in fences.glob("*") if path.name.isdigit()]
        step = _place(newest.name)[0]
        try:
            self._fence = self._fence or self._take_fence()
            published = self._outputs.publish(
                self._folder,
                [path.relative_to(self._folder).as_posix() for path in files],
                step,
                self._fence,
            )
        except Changed as error:  # pruned or replaced meanwhile: the next round has another
            say(f"checkpoint of step {step} was not sent: {error}")
            return
        self._published.add(str(newest))
        self.sent.checkpoint = str(published.name)
        self.sent.bytes += published.sent
        say(f"checkpoint of step {step} is in the store as {published.name}: {mib(published.bytes)}, "
            f"{mib(published.sent)} of it new")  # fmt: skip
        self._result("running", "")

    def _take_fence(self) -> Fence:
        resumed = self._state / RESUMED
        name = resumed.read_text().strip() if resumed.exists() else None
        orders = self._orders
        return self._outputs.take_fence(Holder(orders.job, orders.uid, orders.attempt, resumed_from=name))

    # ---- the log

    def _log(self) -> None:
        if not self._orders.logs:
            return
        content = b"".join(_log_pieces(Path(self._orders.logs)))
        digest = hash_of(content)
        if not content or digest == self._log_sent:
            return
        with contextlib.suppress(FileNotFoundError):
            content = (self._state / EARLIER).read_bytes() + content
        self._remote.put(log_name(self._orders.node), lambda: [content], len(content))
        self._log_sent = digest

    def _result(self, state: str, message: str) -> None:
        told = {
            "state": state, "message": message, "files": self.sent.files, "bytes": self.sent.bytes,
            "checkpoint": self.sent.checkpoint, "waiting": self.sent.waiting[:20], "time": time.time(),
        }  # fmt: skip
        draft = self._state / ".sent.json"
        draft.write_text(json.dumps(told))
        draft.replace(self._state / "sent.json")


def _is_ours(folder: Path) -> bool:
    """Whether a folder is a checkpoint of the library: renamed into place with its manifest, so complete if there."""
    return _STEP.match(folder.name) is not None and (folder / "manifest.json").is_file()


def _place(name: str) -> tuple[int, int]:
    found = _STEP.match(name)
    return (int(found[1]), int(found[2] or 0)) if found else (-1, 0)


def _log_pieces(folder: Path) -> Iterator[bytes]:
    """The agent's logs, oldest first."""
    found = []
    for path in folder.glob("attempt-*.log*"):
        match = _ROTATED.match(path.name)
        if match:
            found.append((int(match[1]), -int(match[2] or 0), path))
    for _, _, path in sorted(found):
        with contextlib.suppress(OSError):
            yield path.read_bytes()
