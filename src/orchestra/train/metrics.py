"""Numbers for people: a plain log, TensorBoard, and the trackers that the environment names.

    metrics = train.Metrics(world.output_dir, config={"lr": 0.1}, first=world.is_first)
    metrics.log(step, {"loss": 2.3})
    metrics.close()

Rank 0 alone writes. A tracker that breaks is given up with one warning and never stops the training; each has a
thread of its own, so that a slow server does not hold it up either.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import math
import os
import queue
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from orchestra.train.durable import replace_json

_log = logging.getLogger("orchestra.train")
_RUNS = "trackers.json"
_WAITING = 10_000
_PATIENCE = 10.0


class Tracker(Protocol):
    """Something that keeps curves."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One point of each curve."""

    def close(self) -> None:
        """Nothing more comes."""


class Metrics:
    """All trackers of one training, and `log.txt`. Run ids are kept in the output folder: a restart goes on in them."""

    def __init__(
        self, output_dir: str | Path, *, config: Mapping[str, Any], first: bool = True, after_step: int = 0
    ) -> None:
        self._folder = Path(output_dir)
        self._first = first
        self._trackers: list[_Guarded] = []
        self._warned = False
        if not first:
            return
        runs = _Runs(self._folder / _RUNS)
        name = os.environ.get("ORCHESTRA_JOB") or self._folder.name
        makers: dict[str, Callable[[], Tracker]] = {"TensorBoard": lambda: _TensorBoard(self._folder, after_step)}
        if os.environ.get("MLFLOW_TRACKING_URI"):
            makers["MLflow"] = lambda: _Mlflow(os.environ["MLFLOW_TRACKING_URI"], runs, name, config)
        if os.environ.get("WANDB_API_KEY"):
            makers["W&B"] = lambda: _Wandb(self._folder, runs, name, config)
        self._trackers = [_Guarded(tracker, make) for tracker, make in makers.items()]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One point of each curve. What is not finite is left out. Returns at once."""
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        for tracker in self._trackers:
            tracker.log(step, finite)

    def say(self, line: str) -> None:
        """One line for `log.txt` and for the output."""
        if not self._first:
            return
        print(line, flush=True)
        try:
            with (self._folder / "log.txt").open("a") as file:
                file.write(line + "\n")
        except OSError as error:
            if not self._warned:
                _log.warning("log.txt cannot be written: %s", error)
            self._warned = True

    def close(self, patience: float = _PATIENCE) -> None:
        """Wait a little, at most `patience` seconds in all, for what is still on its way."""
        until = time.monotonic() + patience
        for tracker in self._trackers:
            tracker.end()
        for tracker in self._trackers:
            tracker.wait(until - time.monotonic())


class _Guarded:
    """A tracker on a thread of its own, that is dropped when it fails."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self._name = name
        self._points: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(_WAITING)
        self._broken = False
        self._thread = threading.Thread(target=self._work, args=(make,), name=f"orchestra-{name}", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if not self._broken:
            try:
                self._points.put_nowait((step, values))
            except queue.Full:
                self._give_up(f"{_WAITING} points wait for it")

    def end(self) -> None:
        """Nothing more comes."""
        with contextlib.suppress(queue.Full):
            self._points.put_nowait(None)

    def wait(self, seconds: float) -> None:
        """Until all of it has arrived, or so long."""
        self._thread.join(max(seconds, 0.0))

    def _work(self, make: Callable[[], Tracker]) -> None:
        try:
            tracker = make()
            while (point := self._points.get()) is not None and not self._broken:
                tracker.log(*point)
            tracker.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - other people's code, and none of it matters enough
            self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, reason: str) -> None:
        if not self._broken:
            self._broken = True
            _log.warning("%s is given up, training goes on: %s", self._name, reason)


class _Runs:
    """Which run of a tracker this training is, kept over restarts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def get(self, tracker: str) -> str | None:
        try:
            return str(json.loads(self._path.read_text())[tracker])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, tracker: str, run: str) -> None:
        with self._lock:
            try:
                known = json.loads(self._path.read_text())
            except (OSError, ValueError):
                known = {}
            replace_json(self._path, {**known, tracker: run})


class _TensorBoard:
    """`events.out.tfevents.*` in the output folder."""

    def __init__(self, folder: Path, after_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier attempt logged beyond the checkpoint did not happen.
        purge = after_step + 1 if after_step else None
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Mlflow:
    """MLflow over its REST interface: no package needed. The server must speak http(s)."""

    def __init__(self, uri: str, runs: _Runs, name: str, config: Mapping[str, Any]) -> None:
        if not uri.startswith(("http://", "https://")):
            raise ValueError(f"MLFLOW_TRACKING_URI must begin with http:// or https://, not {uri.split(':')[0]}:")
        self._uri = uri.rstrip("/") + "/api/2.0/mlflow/"
        self._run = os.environ.get("MLFLOW_RUN_ID") or runs.get("mlflow") or ""
        if self._run:
            self._call("runs/update", {"run_id": self._run, "status": "RUNNING"})
            return
        experiment = os.environ.get("MLFLOW_EXPERIMENT_ID", "0")
        about = {"experiment_id": experiment, "run_name": name, "start_time": int(time.time() * 1000)}
        self._run = self._call("runs/create", about)["run"]["info"]["run_id"]
        runs.keep("mlflow", self._run)
        parameters = [{"key": key, "value": str(value)[:500]} for key, value in config.items()]
        self._call("runs/log-batch", {"run_id": self._run, "params": parameters[:100]})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        points = [{"key": key, "value": value, "timestamp": now, "step": step} for key, value in values.items()]
        self._call("runs/log-batch", {"run_id": self._run, "metrics": points})

    def close(self) -> None:
        self._call("runs/update", {"run_id": self._run, "status": "FINISHED", "end_time": int(time.time() * 1000)})

    def _call(self, method: str, content: Mapping[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_USERNAME")
        if token:
            headers["Authorization"] = f"Bearer {token}"
        elif user:
            both = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
            headers["Authorization"] = "Basic " + base64.b64encode(both.encode()).decode()
        request = urllib.request.Request(self._uri + method, json.dumps(content).encode(), headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - http(s), checked above
            return json.loads(answer.read() or b"{}")


class _Wandb:
    """Weights & Biases, by its own package."""

    def __init__(self, folder: Path, runs: _Runs, name: str, config: Mapping[str, Any]) -> None:
        import wandb  # type: ignore[import-not-found, unused-ignore]

        run = os.environ.get("WANDB_RUN_ID") or runs.get("wandb")
        self._run: Any = wandb.init(id=run, resume="allow", name=name, config=dict(config), dir=str(folder))
        runs.keep("wandb", str(self._run.id))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
