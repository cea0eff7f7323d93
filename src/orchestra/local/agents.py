"""The agents of one attempt: started, watched, asked and ended."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from orchestra.agent.pack import agent_bytes, agent_hash
from orchestra.agent.processes import of_worker
from orchestra.api.base import Model
from orchestra.local.home import Home
from orchestra.plan.outcome import AgentResult, RankFailure, read_result

_HTTP_TIMEOUT = 0.5
_SWEEP_SECONDS = 5.0


class AgentView(Model):
    """What an agent says about itself (`/progress`)."""

    state: str = ""
    restarts: int = 0
    progress: dict[str, Any] | None = None
    ranks: dict[str, Any] = {}


@dataclass
class Agent:
    """One node's agent: our own child process."""

    index: int
    folder: Path
    process: subprocess.Popen[bytes]

    def ask(self) -> AgentView | None:
        """Its own word on how it goes; None when it does not answer at once."""
        try:
            address = json.loads((self.folder / "agent.json").read_text())
            if address.get("pid") not in (None, self.process.pid):
                return None  # of an earlier attempt
            host, _, port = str(address["address"]).rpartition(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=_HTTP_TIMEOUT)
            try:
                connection.request("GET", "/progress")
                return msgspec.json.decode(connection.getresponse().read(), type=AgentView)
            finally:
                connection.close()
        except (OSError, ValueError, KeyError, http.client.HTTPException, msgspec.MsgspecError):
            return None

    def leftovers(self) -> bool:
        """Whether anything that it started still runs."""
        try:
            run = str(json.loads((self.folder / "agent.json").read_text())["run"])
        except (OSError, ValueError, KeyError):
            return False
        return bool(of_worker(run))


class Agents:
    """All agents of one attempt."""

    def __init__(self, specs: list[dict[str, Any]], home: Home, log: Path) -> None:
        self.attempt = int(specs[0]["attempt"])
        self._program = unpacked_agent(home)
        self._log = log
        self._specs = specs
        self.members: list[Agent] = []

    def start(self) -> None:
        """Starts one agent a node."""
        self.members = [self._start(spec) for spec in self._specs]

    def _start(self, spec: dict[str, Any]) -> Agent:
        folder = Path(spec["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        for stale in ("result.json", "agent.json", "stop.json"):
            (folder / stale).unlink(missing_ok=True)
        file = folder / "launch.json"
        file.write_text(json.dumps(spec))
        file.chmod(0o600)  # it holds the job's environment
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(self._program), "run", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the agent keeps its own log
                stderr=log,
                start_new_session=True,
            )
        return Agent(int(spec["node"]), folder, process)

    def restart(self, index: int) -> None:
        """Starts one node's agent anew, within the same attempt: an elastic job takes it back in."""
        self.members[index] = self._start(self._specs[index])

    def running(self) -> list[Agent]:
        """Those that have not ended."""
        return [agent for agent in self.members if agent.process.poll() is None]

    def ended(self) -> list[Agent]:
        """Those that have."""
        return [agent for agent in self.members if agent.process.poll() is not None]

    def stop(self) -> None:
        """Asks every agent for a graceful stop."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends every agent at once, and waits until their guards have ended whatever they started."""
        self._signal(signal.SIGKILL)
        end = time.monotonic() + _SWEEP_SECONDS
        for agent in self.members:
            agent.process.wait()
            while agent.leftovers() and time.monotonic() < end:
                time.sleep(0.02)

    def _signal(self, number: int) -> None:
        for agent in self.running():
            agent.process.send_signal(number)

    def results(self) -> dict[int, AgentResult | None]:
        """Each node's last word."""
        return {agent.index: self._result(agent) for agent in self.members}

    def _result(self, agent: Agent) -> AgentResult | None:
        result = read_result(agent.folder, self.attempt)
        code = agent.process.returncode
        if result is not None or code is None:
            return result
        if code == -signal.SIGTERM:
            return AgentResult(state="stopped")  # asked to stop while its own Python was starting
        if code > 0:  # not killed: it could not even begin, and would not the next time
            message = f"the agent ended with code {code} and no result; see {self._log}"
            failure = RankFailure(reason="Agent", message=message, exit_code=code)
            return AgentResult(state="failed", exit_code=code, failure=failure)
        return None

    def ask_first(self) -> AgentView | None:
        """The view of the first agent that answers: rank 0 is usually there."""
        return next((view for view in (agent.ask() for agent in self.running()) if view is not None), None)


def unpacked_agent(home: Home) -> Path:
    """The packed agent in a file of its own, named by its content."""
    target = home.agent / f"agent-{agent_hash()[:16]}.pyz"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(agent_bytes())
        temporary.replace(target)
    return target
