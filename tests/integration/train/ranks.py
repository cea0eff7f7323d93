"""Starts the ranks of a training as the agent's shim would, each with files of its own."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from testbed.waiting import wait_until

SMOKE = [sys.executable, "-m", "orchestra.train.smoke"]
SECONDS = 240.0


def environment() -> dict[str, str]:
    """Ours, without anything that a launcher or an agent might have left in it."""
    foreign = re.compile("ORCHESTRA_|TORCHELASTIC_|PET_|.*RANK$|.*WORLD_SIZE$|MASTER_")
    kept = {name: value for name, value in os.environ.items() if not foreign.match(name)}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def by_hand(*flags: str, launcher: list[str] | None = None) -> str:
    """Run the smoke trainer to its end without an agent. Returns its output."""
    command = [*launcher, *SMOKE[1:]] if launcher else SMOKE
    done = subprocess.run([*command, *flags], env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def final_loss(output: str) -> float:
    """The loss in the line that says [DONE]."""
    found = re.search(r"\[DONE\] .*loss=(\S+)", output)
    assert found, output
    return float(found[1])


@dataclass
class Rank:
    """One process."""

    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def output(self) -> str:
        """What it printed so far."""
        return (self.folder / "output").read_text()

    @property
    def progress(self) -> dict[str, Any]:
        """Its last report."""
        return _json(self.folder / "progress.json")

    @property
    def result(self) -> dict[str, Any]:
        """Its last word."""
        return _json(self.folder / "result.json")

    def ask_to_stop(self) -> None:
        """As an agent does: first the file, then the signal."""
        (self.folder / "stop.json").write_text(json.dumps({"reason": "test", "deadline": 0}))
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self, timeout: float = SECONDS) -> int:
        """Wait for its end."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"still running after {timeout:g} s:\n{self.output}") from error

    def wait_for_step(self, step: int, timeout: float = SECONDS) -> None:
        """Wait until it reports a step at least as far."""
        wait_until(f"step {step}:\n{self.output}", lambda: self._is_at(step), timeout=timeout)

    def _is_at(self, step: int) -> bool:
        assert self.process.poll() is None, self.output
        return bool(self.progress.get("step", 0) >= step)


class Ranks:
    """All processes of one training on this machine. None of them outlives the `with`."""

    def __init__(
        self, folder: Path, size: int, *flags: str, stop_files: bool = True, program: list[str] = SMOKE
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [*program, *flags]
        self.ranks = [
            self._start(folder / f"rank-{rank}", rank, size, port, command, stop_files) for rank in range(size)
        ]

    def __enter__(self) -> list[Rank]:
        return self.ranks

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()

    @staticmethod
    def _start(folder: Path, rank: int, size: int, port: int, command: list[str], stop_files: bool) -> Rank:
        folder.mkdir(parents=True)
        variables = environment() | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "ORCHESTRA_BACKEND": "gloo",
            "ORCHESTRA_PROGRESS_FILE": str(folder / "progress.json"),
            "ORCHESTRA_RESULT_FILE": str(folder / "result.json"),
        }
        if stop_files:
            variables["ORCHESTRA_STOP_FILE"] = str(folder / "stop.json")
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT)
        return Rank(folder, process)


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content
