"""One worker for a test: a real agent.pyz in a process of its own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestra.agent.pack import agent_bytes
from orchestra.agent.processes import of_worker


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Waits for something to become true, and returns it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds} s")


class Worker:
    """Starts an agent in a folder and looks at what it leaves there."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.code = folder / "code"
        self.folder = folder / "worker"
        self.python = python
        self.code.mkdir(parents=True, exist_ok=True)
        self.agent_file = folder / "agent.pyz"
        self.agent_file.write_bytes(agent_bytes())
        self.process: subprocess.Popen[bytes] | None = None
        self._spec_file = folder / "spec.json"
        self._stdout = folder / "stdout"

    def script(self, name: str, text: str) -> Path:
        path = self.code / name
        path.write_text(text)
        return path

    def torchrun(self, procs: int = 2, restarts: int = 0, nodes: str = "1", port: int | None = None) -> dict[str, Any]:
        """The fields of a spec that uses torchrun."""
        options = [
            f"--nnodes={nodes}",
            f"--nproc-per-node={procs}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port or free_port()}",
            "--rdzv-id=test",
            f"--max-restarts={restarts}",
            "--local-addr=127.0.0.1",
            "--rdzv-conf=is_host=1,join_timeout=600,keep_alive_interval=1,keep_alive_max_attempt=3",
        ]
        return {
            "launcher": "torchrun",
            "launcherArgv": [sys.executable, "-m", "torch.distributed.run", *options],
            "procsPerNode": procs,
        }

    def start(self, program: list[str], **fields: Any) -> Worker:
        spec = {
            "version": 1,
            "job": "test",
            "uid": "u",
            "attempt": 1,
            "node": 0,
            "nodes": 1,
            "procsPerNode": 1,
            "launcher": "none",
            "launcherArgv": [],
            "program": program,
            "env": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            "workingDir": str(self.code),
            "gracePeriodSeconds": 10,
            "folder": str(self.folder),
            **fields,
        }
        self._spec_file.write_text(json.dumps(spec))
        with self._stdout.open("ab") as stdout:
            argv = [self.python, "-I", "-S", str(self.agent_file), "run", str(self._spec_file)]
            self.process = subprocess.Popen(argv, stdout=stdout, stderr=subprocess.STDOUT)
        return self

    def wait(self, seconds: float = 30.0) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    @property
    def about(self) -> dict[str, Any]:
        """agent.json."""
        data = until(lambda: self._json("agent.json"), 10, "agent.json")
        assert isinstance(data, dict)
        return data

    @property
    def result(self) -> dict[str, Any]:
        data = self._json("result.json")
        assert data is not None, self.stdout
        return data

    @property
    def failure(self) -> dict[str, Any]:
        failure = self.result["failure"]
        assert isinstance(failure, dict), self.result
        return failure

    @property
    def stdout(self) -> str:
        return self._stdout.read_text()

    def log(self, attempt: int = 1) -> list[tuple[str, str]]:
        """Tag and text of each line."""
        path = self.folder / "logs" / f"attempt-{attempt}.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(line.split(" ")[1], line.split(" ", 2)[2]) for line in lines]

    def tagged(self, tag: str) -> list[str]:
        return [text for each, text in self.log() if each == tag]

    def says(self, text: str, seconds: float = 20.0) -> None:
        """Waits for a text in the log."""
        until(lambda: any(text in line for _, line in self.log()), seconds, f"{text!r} in the log")

    def alive(self) -> dict[int, str]:
        """The processes of this worker, by their command lines; the agent and its guard too."""
        found = of_worker(self.about["run"]) | _children_named(str(self.agent_file))
        return {pid: _command(pid) for pid in found if _command(pid)}

    def end(self) -> None:
        """For teardown."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._json("agent.json"):
            until(lambda: not self.alive(), 10, "the end of all processes")

    def _json(self, name: str) -> dict[str, Any] | None:
        try:
            data = json.loads((self.folder / name).read_text())
        except (OSError, ValueError):
            return None
        assert isinstance(data, dict)
        return data


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def _children_named(agent_file: str) -> set[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return {pid for pid in pids if agent_file in _command(pid)}
