"""What every engine can do, in the words of the API. One protocol, one contract test suite, two implementations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

from orchestra.api.base import Model
from orchestra.api.job import TorchrunJob
from orchestra.api.queue import TorchrunQueue


class EngineError(Exception):
    """Something the user asked for cannot be done: what, and what to do instead."""


class NotFound(EngineError):
    """There is no such job."""


class Event(Model):
    """Something that happened to a job."""

    time: float
    """Unix seconds."""
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class LogLine(Model):
    """One line of one rank."""

    time: float
    """Unix seconds."""
    source: str
    """`r3` for rank 3, `agent` or `setup`."""
    text: str

    @property
    def rank(self) -> int | None:
        """The rank that wrote it; None for the agent and the set-up."""
        return int(self.source[1:]) if self.source[:1] == "r" and self.source[1:].isdigit() else None


class LogQuery(Model):
    """Which lines are wanted."""

    follow: bool = False
    ranks: list[int] | None = None
    since: float | None = None
    """Unix seconds."""
    tail: int | None = None
    grep: str | None = None
    """A regular expression."""
    role: Literal["master", "worker"] | None = None
    """`master`: the first node alone (launcher and master of other controllers); `worker`: the others."""


class Cause(Model):
    """One reason why a job is where it is, most important first; never a guess."""

    about: Literal["queue", "gang", "nodes", "volumes", "image", "container", "rank", "job"]
    message: str
    mend: str = ""


class Run(Model):
    """A run in the history."""

    job: TorchrunJob
    deleted: float | None = None
    """When it was deleted or made room for another of its name; unix seconds."""


class Submission(Model, kw_only=True):
    """A job on its way to an engine."""

    job: TorchrunJob
    queue: TorchrunQueue | None = None
    """The queue that came with it; None: the engine's own of that name."""
    folder: str
    """The folder it is submitted from."""
    cpu: bool = False
    """Map the ranks to CPU processes with gloo."""
    in_place: bool = False
    """Run in the folder itself instead of on a snapshot of it."""
    include: list[str] = []
    """Relative paths that ship although a rule says otherwise."""


class Engine(Protocol):
    """A place where jobs run."""

    name: str
    history_note: str
    """What its history cannot tell; empty when it can tell all."""
    tick: float
    """Seconds between two looks at a job while somebody waits."""

    @property
    def where(self) -> str:
        """This place in a few words, for people."""

    def look(self) -> None:
        """Looks again who is alive; a command that goes on for a while does this between."""

    def again(self) -> Engine:
        """The same engine for another thread."""

    def losses(self, name: str) -> list[float]:
        """The last losses, for a small curve; none where only the last one is kept."""

    def places(self, name: str) -> dict[str, str]:
        """Where logs and outputs lie, in words."""

    def submit(self, submission: Submission) -> TorchrunJob:
        """Starts a job; raises `Invalid` or `EngineError` and leaves nothing behind when it cannot."""

    def get(self, name: str) -> TorchrunJob:
        """One job with its status; raises `NotFound`."""

    def jobs(self) -> list[TorchrunJob]:
        """All jobs, oldest first."""

    def history(self) -> list[Run]:
        """Every run there ever was, oldest first."""

    def newest(self, folder: Path) -> str | None:
        """Name of the newest job submitted from a folder."""

    def logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        """Lines in the order of their time; with `follow`, until the job has ended, across restarts."""

    def events(self, name: str) -> list[Event]:
        """What happened, oldest first."""

    def why(self, name: str) -> list[Cause]:
        """Why the job is where it is."""

    def suspend(self, name: str) -> TorchrunJob:
        """Asks for a checkpoint, a stop and the resources back; does not wait."""

    def resume(self, name: str, changes: dict[str, Any]) -> TorchrunJob:
        """Goes on from the last checkpoint, with changes of the spec that a suspended job may have."""

    def cancel(self, name: str) -> TorchrunJob:
        """Stops the job for good; does not wait."""

    def delete(self, name: str, *, purge: bool = False) -> None:
        """Stops and forgets the job; `purge` removes its outputs too."""

    def queues(self) -> list[TorchrunQueue]:
        """The queues that this engine knows."""
