"""Where the engine keeps things: one folder, `ORCHESTRA_HOME`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """The engine's folder and the places in it."""

    root: Path

    @classmethod
    def of_user(cls) -> Home:
        """`ORCHESTRA_HOME`, else the user's state folder."""
        given = os.environ.get("ORCHESTRA_HOME")
        if given:
            return cls(Path(given).absolute())
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return cls(Path(state).absolute() / "orchestra")

    @property
    def database(self) -> Path:
        """The store."""
        return self.root / "jobs.db"

    @property
    def agent(self) -> Path:
        """The packed agents, by content."""
        return self.root / "agents"

    @property
    def code(self) -> Path:
        """Snapshots of the folders that jobs were submitted from."""
        return self.root / "code"

    def job(self, name: str, uid: str) -> JobFolder:
        """The folder of one job. The name is for people, the uid keeps two jobs of one name apart."""
        return JobFolder(self.root / "jobs" / f"{name}-{uid[:8]}")

    def volume(self, claim: str) -> Path:
        """What stands for a claim that exists in a cluster: data sets, model weights."""
        return self.root / "volumes" / claim


@dataclass(frozen=True)
class JobFolder:
    """The places of one job."""

    root: Path

    @property
    def output(self) -> Path:
        """Checkpoints and whatever else the job writes; outlives the job unless purged."""
        return self.root / "out"

    @property
    def code(self) -> Path:
        """The trees that the job runs in."""
        return self.root / "code"

    @property
    def reload(self) -> Path:
        """Where the supervisor is asked to change the code of a running job, and answers."""
        return self.root / "reload"

    @property
    def lock(self) -> Path:
        """Held by the job's supervisor as long as it lives."""
        return self.root / "supervisor.lock"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor itself has to say."""
        return self.root / "supervisor.log"

    def node(self, index: int) -> Path:
        """State of one node: the agent's logs, results and progress."""
        return self.root / "nodes" / str(index)
