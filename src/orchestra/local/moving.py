"""Object stores on this machine: two processes beside a job, one that fetches before it and one that sends.

They are programs of their own because the store's library must not live in a process that forks, as a supervisor does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from orchestra.local.home import Home, JobFolder
from orchestra.local.store import Record
from orchestra.plan import Plan
from orchestra.sync.hashing import hash_of
from orchestra.sync.moving import Git, Orders
from orchestra.sync.worker import REFUSED

_TICK = 0.1
_MARGIN = 300.0
_PAUSE = 1.0
_KILLED = "the upload was killed"


class FetchFailed(Exception):
    """What the attempt needs could not be brought here."""

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final
        """Another try would find the same."""


class Mover:
    """What is moved for one attempt of one job."""

    def __init__(self, record: Record, made: Plan, folder: JobFolder, home: Home, attempt: int) -> None:
        sync, code = made.sync, made.code
        self._folder = folder
        self._env = os.environ | made.nodes[0].env
        self._log = folder.root / "nodes" / "sync" / "logs" / f"attempt-{attempt}.log"
        self._sender: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._turn = threading.Lock()
        remote_code = code if code is not None and code.source in ("git", "s3") else None
        bucket = remote_code if remote_code and remote_code.source == "s3" else None
        has_code = bool(remote_code or (sync and sync.code))
        self.code = folder.root / "fetched" if has_code else None
        self.data = data_folder(made, home)
        self.output = folder.output if sync and sync.output else None
        self.orders = Orders(
            job=made.job,
            uid=record.uid,
            attempt=attempt,
            git=Git(remote_code.url or "", remote_code.ref) if remote_code and remote_code.source == "git" else None,
            code=(sync.code if sync else None) or (bucket.url if bucket else None),
            code_folder=str(self.code) if self.code else None,
            data=sync.data if sync else None,
            data_folder=str(self.data) if self.data else None,
            output=sync.output if sync else None,
            output_folder=str(folder.output),
            interval=float(sync.interval if sync else 600),
            quiet=float(self._env.get("ORCHESTRA_SYNC_QUIET_SECONDS", "20")),
            grace=float(made.lifecycle.grace_period_seconds or 30),
            logs=str(folder.node(0) / "logs"),
            state=str(folder.root / "sync"),
        )

    @property
    def needed(self) -> bool:
        """Whether anything is to be moved at all."""
        return bool(self.orders.git or self.orders.code or self.orders.data or self.orders.output)

    def fetch(self, told: Callable[[str], None], asked: Callable[[], object]) -> bool:
        """Brings everything here; `told` hears each line. False when somebody asked for the end meanwhile."""
        process = self._start("fetch", told)
        while process.poll() is None:
            if asked():
                process.terminate()
                process.wait()
                return False
            time.sleep(_TICK)
        self._join()
        if process.returncode:
            reason = next((line[7:] for line in reversed(self._lines()) if line.startswith("error: ")), "it was killed")
            raise FetchFailed(reason, final=process.returncode == REFUSED)
        return True

    def link(self, folder: Path) -> None:
        """`data` and `out` in the working folder, as in the scripts that people know, unless it has its own."""
        for name, place in (("data", self.data), ("out", self.output)):
            if place is not None and not os.path.lexists(folder / name):
                place.mkdir(parents=True, exist_ok=True)
                (folder / name).symlink_to(place)

    def places(self) -> dict[str, str]:
        """Where the folders of a pod are here."""
        found = {"/data": self.data, "/out": self.output}
        return {mount: str(place) for mount, place in found.items() if place is not None}

    def start(self) -> None:
        """Begins to send, if there is anywhere to."""
        if self.orders.output:
            self._sender = self._start("send", lambda _: None)
            threading.Thread(target=self._tend, daemon=True).start()

    def _tend(self) -> None:
        """A sender that was killed is started anew, as a kubelet does it."""
        while (sender := self._sender) is not None:
            sender.wait()
            time.sleep(_PAUSE)
            with self._turn:
                if self._sender is sender:
                    self._sender = self._start("send", lambda _: None)

    def finish(self) -> str | None:
        """The last round. Returns why not everything is there, or None."""
        with self._turn:
            sender, self._sender = self._sender, None
        if sender is None:
            return None
        unsent = self._last_round(sender)
        return self._last_round(self._start("send", lambda _: None)) if unsent == _KILLED else unsent

    def _last_round(self, sender: subprocess.Popen[bytes]) -> str | None:
        if sender.stdin is not None:
            sender.stdin.close()  # not a signal: one that is just starting would die of it, and send nothing
        try:
            sender.wait(timeout=self.orders.grace + _MARGIN)
        except subprocess.TimeoutExpired:
            sender.kill()
            sender.wait()
        self._join()
        if sender.returncode <= 0:
            return _KILLED if sender.returncode else None
        try:
            told = json.loads((Path(self.orders.state) / "sent.json").read_bytes())
        except (OSError, ValueError):
            told = {}
        return str(told.get("message") or _KILLED)

    def _start(self, verb: str, told: Callable[[str], None]) -> subprocess.Popen[bytes]:
        file = self._folder.root / "sync" / f"{verb}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(self.orders))
        self._log.parent.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestra.sync.worker", verb, str(file)],
            stdin=subprocess.PIPE,  # a lifeline: it closes when we are gone, and everything is sent once more
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._env | {"ORCHESTRA_LIFELINE": "stdin"},
            start_new_session=True,
            cwd="/",
        )
        assert process.stdout is not None  # noqa: S101
        self._reader = threading.Thread(target=self._read, args=(process.stdout, told), daemon=True)
        self._reader.start()
        return process

    def _read(self, stream: IO[bytes], told: Callable[[str], None]) -> None:
        for line in stream:
            text = line.decode("utf-8", "replace").rstrip()
            with self._log.open("a") as log:
                log.write(f"{time.time():.3f} sync {text}\n")
            told(text)

    def _join(self) -> None:
        if self._reader is not None:
            self._reader.join(timeout=5)

    def _lines(self) -> list[str]:
        try:
            return [line.split(" ", 2)[-1] for line in self._log.read_text().splitlines()]
        except OSError:
            return []


def data_folder(made: Plan, home: Home) -> Path | None:
    """Where `sync.data` lies: the volume that stands for the data sets, else a folder of its own, once a machine."""
    if made.sync is None or not made.sync.data:
        return None
    claimed = next((volume for volume in made.volumes if volume.purpose == "datasets"), None)
    return home.volume(claimed.claim) if claimed else home.root / "data" / hash_of(made.sync.data.encode())[:16]
