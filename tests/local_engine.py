"""The embedded engine with what tests need around it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builders import a_cpu_queue, a_job
from orchestra.api.engine import Submission
from orchestra.api.job import TorchrunJob
from orchestra.local.engine import LocalEngine
from orchestra.local.home import Home
from orchestra.local.recover import supervised
from orchestra.plan.status import RESTING

COOPERATIVE = Path(__file__).parent / "integration" / "local" / "cooperative.py"
TIMEOUT = 60.0


class Local:
    """The engine with what tests need around it."""

    def __init__(self, home: Path) -> None:
        self.home = Home(home)

    @property
    def engine(self) -> LocalEngine:
        """A fresh look, as each command has one."""
        return LocalEngine(self.home)

    def submit(
        self, name: str, command: Any, *, cpu: bool = False, folder: Path | None = None, **spec: Any
    ) -> TorchrunJob:
        """Submits a job on a CPU queue."""
        job = a_job(name, command=command, **spec)
        where = str(folder or self.home.root)
        return self.engine.submit(Submission(job=job, queue=a_cpu_queue(), folder=where, cpu=cpu))

    def cooperative(self, name: str, *words: object, **spec: Any) -> TorchrunJob:
        """Submits the cooperative script as a plain command: no torch, starts at once."""
        return self.submit(name, self.cooperative_command(*words), launcher="none", **spec)

    def cooperative_command(self, *words: object) -> list[str]:
        """The command of the cooperative script."""
        return [sys.executable, str(COOPERATIVE), *map(str, words)]

    def wait(self, name: str, until: Callable[[TorchrunJob], object], timeout: float = TIMEOUT) -> TorchrunJob:
        """The job once `until` holds."""
        end = time.monotonic() + timeout
        while True:
            job = self.engine.get(name)
            if until(job):
                return job
            if time.monotonic() > end or (job.status and job.status.phase in RESTING):
                raise TimeoutError(f"{name} did not get there: {job.status}\n{self.log(name)}")
            time.sleep(0.05)

    def rest(self, name: str, timeout: float = TIMEOUT) -> TorchrunJob:
        """The job once it is at rest and its supervisor is gone."""
        job = self.wait(name, lambda job: job.status and job.status.phase in RESTING, timeout)
        folder = self.home.job(name, job.metadata.uid or "")
        end = time.monotonic() + timeout
        while supervised(folder) and time.monotonic() < end:
            time.sleep(0.02)
        return self.engine.get(name)

    def step(self, name: str, at_least: int, timeout: float = TIMEOUT) -> TorchrunJob:
        """The job once it has reported a step."""

        def reached(job: TorchrunJob) -> bool:
            progress = job.status.progress if job.status else None
            return progress is not None and (progress.step or 0) >= at_least

        return self.wait(name, reached, timeout)

    def log(self, name: str) -> str:
        """All lines of the job."""
        from orchestra.api.engine import LogQuery

        return "\n".join(f"[{line.source}] {line.text}" for line in self.engine.logs(name, LogQuery()))

    def saved_step(self, name: str) -> int:
        """The step that the cooperative script saved last."""
        return int(json.loads((self.engine.output(name) / "step.json").read_text())["step"])

    def processes(self) -> dict[int, str]:
        """Every process of any job of this engine, by pid."""
        marker = f"ORCHESTRA_HOME={self.home.root}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if marker in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def supervisor(self, name: str) -> int:
        """Pid of the job's supervisor."""
        uid = self.engine.get(name).metadata.uid or ""
        return next(
            pid for pid, words in self.processes().items() if f"orchestra.local.supervisor {name} {uid}" in words
        )

    def nothing_left(self, timeout: float = 10.0) -> None:
        """Fails when a process of any job is still there after a while."""
        end = time.monotonic() + timeout
        while self.processes():
            if time.monotonic() > end:
                raise AssertionError(f"still there: {self.processes()}")
            time.sleep(0.05)

    def cli(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """`orchestra ...` as a user types it."""
        program = Path(sys.executable).with_name("orchestra")
        env = os.environ | {"ORCHESTRA_HOME": str(self.home.root), "KUBECONFIG": str(self.home.root / "none")}
        cwd = folder or self.home.root
        return subprocess.run(
            [str(program), *words], capture_output=True, text=True, check=False, env=env, cwd=cwd, timeout=120
        )
