"""One live job on an output: whoever comes second is refused, before it has touched anything.

    <output>/alive/<uid>.json    written again and again while a job lives, removed at its end

No clock is compared: a sign of life that does not change while we look is that of a dead job, and is taken away.
Fences (chain.py) protect what is written in any case; this tells people, at once and by name.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import msgspec

from orchestra.sync.errors import Missing, SyncError
from orchestra.sync.moving import Orders, say
from orchestra.sync.remote import Remote

_FOLDER = "alive"
_PATIENCE = 3.0
"""In heartbeats: what does not change for so long is dead."""


class InUse(SyncError):
    """Another job that is alive writes to the same output."""


class Sign(msgspec.Struct, frozen=True):
    """A sign of life."""

    job: str
    uid: str
    beat: int
    running: bool


class Company:
    """Our own sign of life, and those of others on the same output."""

    def __init__(self, remote: Remote, orders: Orders) -> None:
        self._remote, self._orders = remote, orders
        self._key = f"{_FOLDER}/{orders.uid}.json"
        self._beat = 0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def enter(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Show ourselves, then look who else is here. Raises `InUse` for a job that lives."""
        self._show(running=False)
        try:
            for key in self._others():
                self._refuse_if_alive(key, sleep)
        except InUse:
            self._remote.delete([self._key])
            raise

    def stay(self) -> None:
        """Be seen from now on, until `leave`."""
        self._thread = threading.Thread(target=self._beats, name="alive", daemon=True)
        self._thread.start()

    def hand_over(self) -> None:
        """Somebody else of the same job shows it from now on."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def leave(self) -> None:
        """The job is over here."""
        self.hand_over()
        try:
            self._remote.delete([self._key])
        except SyncError as error:  # the next job finds that it does not change, and takes it away
            say(f"warning: our sign of life stays in {self._remote.url}: {error}")

    def _beats(self) -> None:
        while True:
            with contextlib.suppress(SyncError):  # the uploads tell of a store that does not answer
                self._show(running=True)
            if self._done.wait(self._orders.heartbeat):
                return

    def _show(self, *, running: bool) -> None:
        self._beat += 1
        data = msgspec.json.encode(Sign(self._orders.job, self._orders.uid, self._beat, running))
        self._remote.put(self._key, lambda: [data], len(data))

    def _others(self) -> list[str]:
        return [item.key for item in self._remote.listing(_FOLDER) if item.key != self._key]

    def _refuse_if_alive(self, key: str, sleep: Callable[[float], None]) -> None:
        before = self._read(key)
        looked = 0.0
        while (now := self._read(key)) is not None and now == before:
            if looked >= _PATIENCE * self._orders.heartbeat:
                name = f"{now.job} ({now.uid})"
                say(f"{name} wrote to {self._remote.url} and ended without a word: this job goes on in its place")
                self._remote.delete([key])
                return
            if looked == 0.0:
                say(f"{now.job} ({now.uid}) may still write to {self._remote.url}: looking whether it lives")
            pause = min(1.0, self._orders.heartbeat / 4)
            sleep(pause)
            looked += pause
        if now is None or (not now.running and now.uid > self._orders.uid):
            return  # gone meanwhile; or it has just come, as we did, and gives way
        raise InUse(
            f"{self._remote.url} is the output of {now.job} ({now.uid}), which is running; "
            "cancel it, wait for its end, or give this job another sync.output"
        )

    def _read(self, key: str) -> Sign | None:
        try:
            return msgspec.json.decode(self._remote.get(key), type=Sign)
        except Missing:
            return None
        except msgspec.MsgspecError as error:
            raise SyncError(f"{self._remote.url}/{key} is no sign of life: {error}; delete it") from error
