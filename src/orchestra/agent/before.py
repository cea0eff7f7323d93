"""What a worker does before it launches: its files, its Python environment, its set-up command."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from .child import Child
from .failure import LINES_KEPT, Failure
from .files import read_json, remove, write_json
from .spec import LaunchSpec
from .venvs import inside, launched_inside
from .verdict import Verdict


class Before:
    """The part of the agent that comes first. The agent itself has the loop around it."""

    _spec: LaunchSpec
    _env: dict[str, str]
    _agent_file: str
    _child: Child | None
    _kept: set[int]

    def _start(self, argv: list[str], tag: str) -> None:
        raise NotImplementedError

    def _turn_once(self) -> Verdict | None:
        raise NotImplementedError

    def _drain_child(self) -> None:
        raise NotImplementedError

    def _adopted(self) -> set[int]:
        raise NotImplementedError

    def _prepare(self) -> Verdict | None:
        """Writes the files and runs the set-up command. A verdict if the worker ends here."""
        folder = Path(self._spec.working_dir) if self._spec.working_dir else Path.cwd()
        if not folder.is_dir():
            return self._setup_failed(f"the working folder {folder} does not exist", None)
        try:
            for name, text in self._spec.files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
            ended = self._make_environment(folder)
            if ended is not None or not self._spec.setup:
                return ended or self._turn_once()
            ended = self._run_before(self._spec.setup)
        except OSError as error:
            return self._setup_failed(f"{error.filename}: {error.strerror}", None)
        assert self._child is not None  # noqa: S101
        if ended is not None:
            return ended
        # A service that the set-up command left in the background belongs to the worker, not to a dead rank.
        self._kept = self._adopted()
        if self._child.exit != 0:
            return self._setup_failed(f"the set-up command exited with code {self._child.exit}", self._child)
        return None

    def _run_before(self, argv: list[str]) -> Verdict | None:
        """Runs something to its end before the launch. A verdict if the worker ends meanwhile."""
        self._start(argv, "setup")
        assert self._child is not None  # noqa: S101
        while self._child.exit is None:
            ended = self._turn_once()
            if ended is not None:
                return ended
        self._drain_child()
        return None

    def _make_environment(self, folder: Path) -> Verdict | None:
        spec = self._spec
        if spec.environment is None:
            return None
        orders, answer = spec.folder / "environment.json", spec.folder / "environment-made.json"
        remove(answer)
        python = shutil.which(spec.program[0], path=self._env.get("PATH"))
        interpreter = python if python and "python" in spec.program[0] else sys.executable
        told = {**spec.environment, "workingDir": str(folder), "interpreter": interpreter, "answer": str(answer)}
        write_json(orders, told)
        ended = self._run_before([sys.executable, "-I", "-S", self._agent_file, "environment", str(orders)])
        assert self._child is not None  # noqa: S101
        if ended is not None:
            return ended
        made = read_json(answer)
        if self._child.exit != 0 or made is None:
            last = (list(self._child.errors) or ["it ended"])[-1]
            return self._setup_failed(f"the environment could not be made: {last}", self._child)
        inside(made["folder"], self._env)
        self._spec = replace(
            spec,
            program=launched_inside(spec.program, made["folder"]),
            launcher_argv=launched_inside(spec.launcher_argv, made["folder"]),
        )
        return None

    def _setup_failed(self, message: str, child: Child | None) -> Verdict:
        lines = list(child.lines)[-LINES_KEPT:] if child else []
        code = child.exit if child else None
        return Verdict("failed", Failure("Setup", message, lines, exit=code, time=time.time()))
