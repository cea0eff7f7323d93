"""Trackers: what they are told, and what happens when they break."""

import json
import logging
import sys
import threading
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestra.train.goodput import Goodput
from orchestra.train.metrics import Metrics


class Mlflow(HTTPServer):
    """What the REST interface of a tracking server answers, and a record of what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.broken = False
        super().__init__(("127.0.0.1", 0), Answer)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    """One call."""

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Mlflow)
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = self.path.removeprefix("/api/2.0/mlflow/")
        server.told.append((method, content))
        self.send_response(500 if server.broken else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"run": {"info": {"run_id": "r17"}}} if method == "runs/create" else {}).encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mlflow]:
    for name in ("MLFLOW_RUN_ID", "WANDB_API_KEY", "ORCHESTRA_JOB", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Mlflow()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def without_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.train.metrics._TensorBoard", lambda *_: Silent())


class Silent:
    """Keeps nothing."""

    def log(self, *_: Any) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def test_mlflow_gets_each_point_and_a_restart_goes_on_in_the_same_run(mlflow: Mlflow, tmp_path: Path) -> None:
    for step in (1, 2):
        metrics = Metrics(tmp_path, config={"lr": 0.1})
        metrics.log(step, {"loss": 2.5, "broken": float("nan")})
        metrics.close()
    methods = [method for method, _ in mlflow.told]
    assert methods.count("runs/create") == 1
    assert methods == [
        *(["runs/create", "runs/log-batch", "runs/log-batch", "runs/update"]),
        *(["runs/update", "runs/log-batch", "runs/update"]),
    ]
    points = [content["metrics"][0] for method, content in mlflow.told if content.get("metrics")]
    assert [(point["key"], point["value"], point["step"]) for point in points] == [("loss", 2.5, 1), ("loss", 2.5, 2)]
    assert all(content.get("run_id", "r17") == "r17" for _, content in mlflow.told)


def test_a_broken_tracker_is_warned_of_once_and_stops_nothing(
    mlflow: Mlflow, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mlflow.broken = True
    with caplog.at_level(logging.WARNING):
        metrics = Metrics(tmp_path, config={})
        for step in range(5):
            metrics.log(step, {"loss": 1.0})
        metrics.say("[TRAIN] step 5")
        metrics.close()
    assert caplog.text.count("MLflow is given up, training goes on: HTTPError") == 1
    assert (tmp_path / "log.txt").read_text() == "[TRAIN] step 5\n"


def test_wandb_keeps_its_run_over_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []

    def init(**about: Any) -> Any:
        begun.append(about["id"])
        return types.SimpleNamespace(id="w3", log=lambda *_, **__: None, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    monkeypatch.setenv("WANDB_API_KEY", "x")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    for _ in range(2):
        metrics = Metrics(tmp_path, config={})
        metrics.log(1, {"loss": 1.0})
        metrics.close()
    assert begun == [None, "w3"]


def test_a_package_that_is_missing_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setenv("WANDB_API_KEY", "x")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    metrics = Metrics(tmp_path, config={})
    metrics.log(1, {"loss": 1.0})
    metrics.close()
    assert "W&B is given up" in caplog.text


def test_only_the_first_rank_writes(mlflow: Mlflow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = Metrics(tmp_path, config={}, first=False)
    metrics.log(1, {"loss": 1.0})
    metrics.say("nothing")
    metrics.close()
    assert not list(tmp_path.iterdir())
    assert not mlflow.told
    assert capsys.readouterr().out == ""


def test_goodput_counts_steps_that_still_count_over_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    first = Goodput()
    first.step(10)
    saved = first.state()
    first.step(20)  # lost with the crash
    now[0] += 40
    again = Goodput(saved)
    again.step(10)
    assert again.share() == pytest.approx(0.5)
