"""What the agent shows of itself: `agent.json`, and its three pages."""

from __future__ import annotations

import json
import os
import time
from typing import Any, NamedTuple

from .files import write_json
from .logbook import Logbook
from .processes import read_process
from .ranks import Round
from .report import ProgressLines, metrics, progress_report
from .spec import LaunchSpec

_HEALTHY_SECONDS = 15.0


class Page(NamedTuple):
    """An answer."""

    status: int
    content_type: str
    body: bytes


class Pages:
    """Serves a report that the loop replaces, so that a reader never waits for the loop, nor the loop for a reader."""

    def __init__(self, spec: LaunchSpec, log: Logbook, marker: str) -> None:
        """Nothing is served before `serve`."""
        self._spec, self._log, self._marker = spec, log, marker
        self._report: dict[str, Any] = {}
        self._turned = time.monotonic()
        self._served = False
        self._tells = spec.node == 0 and bool(spec.result_file)  # in a pod; on one machine everybody reads the file
        self._lines = ProgressLines()

    def show(self, state: str, ranks: Round, failure: dict[str, Any] | None = None) -> None:
        """The worker as it is now."""
        spec = self._spec
        self._report = progress_report(state, spec.node, spec.attempt, ranks, failure, time.monotonic())
        line = self._lines.due(self._report, time.monotonic()) if self._tells else None
        if line is not None:
            self._log.write(time.time(), "agent", line)

    def turned(self, now: float) -> None:
        """The agent's loop is alive."""
        self._turned = now

    def serve(self) -> str:
        """Opens the port and writes `agent.json`. Returns why there is no HTTP, if there is none."""
        if self._served:
            return ""
        self._served = True
        from .server import Server  # Python's HTTP server takes a while to load

        pages = {"/healthz": self._healthz, "/progress": self._progress, "/metrics": self._metrics}
        address, problem = None, ""
        try:
            address = Server(self._spec.listen, pages).address
        except (OSError, ValueError, OverflowError) as error:
            problem = f"no HTTP on {self._spec.listen}: {error}"
        own = read_process(os.getpid())
        about = {
            "pid": os.getpid(),
            "started": own.started if own else None,
            "run": self._marker,
            "attempt": self._spec.attempt,
            "node": self._spec.node,
            "address": address,
            "time": time.time(),
        }
        write_json(self._spec.folder / "agent.json", about)
        return problem

    def _healthz(self) -> Page:
        if time.monotonic() - self._turned < _HEALTHY_SECONDS:
            return Page(200, "text/plain", b"ok\n")
        return Page(503, "text/plain", b"the agent's loop stands still\n")

    def _progress(self) -> Page:
        return Page(200, "application/json", json.dumps(self._report).encode())

    def _metrics(self) -> Page:
        text = metrics(self._report, self._spec.job, self._log.lines, self._log.lost)
        return Page(200, "text/plain; version=0.0.4", text.encode())
