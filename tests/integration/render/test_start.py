"""start.py and the real agent, as a pod runs them: numbers, attempts, the end."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import a_cpu_queue, a_job
from orchestra.render import Options, Target, render

SHOW = "import json, os, sys; json.dump([dict(os.environ), sys.argv[1:]], open(os.environ['SHOWN'], 'w'))"


class Pod:
    """The files of a rendered pod, and its process 1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown = folder / "shown.json"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._started: list[subprocess.Popen[bytes]] = []

    def prepare(self, target: Target = "statefulset", **spec: Any) -> None:
        """Mounts the ConfigMaps; a real pod's folders and port become this pod's."""
        given: dict[str, Any] = {"numNodes": 2, "launcher": "none"} | spec
        objects = render(a_cpu_queue(image="i"), a_job(**given), target, Options()).objects
        for config in [one for one in objects if one["kind"] == "ConfigMap"]:
            for name, text in config.get("data", {}).items():
                (self.folder / name).write_text(text.replace("/run/orchestra", str(self.folder / "run")))
            for name, data in config.get("binaryData", {}).items():
                (self.folder / name).write_bytes(base64.b64decode(data))
        file = self.folder / "launch.json"
        text = file.read_text().replace("0.0.0.0:29599", f"127.0.0.1:{self.port}")
        file.write_text(text.replace("/dev/termination-log", str(self.folder / "log")))

    def start(self, **env: str) -> subprocess.Popen[bytes]:
        known = {
            "NODE_RANK": "1",
            "NNODES": "2",
            "POD_NAME": "job-1",
            "SHOWN": str(self.shown),
            "PATH": os.environ["PATH"],
        }
        process = subprocess.Popen(
            [sys.executable, str(self.folder / "start.py"), str(self.folder / "launch.json")],
            env=known | env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
        )
        self._started.append(process)
        return process

    def get(self, path: str) -> dict[str, Any]:
        deadline = time.monotonic() + 10
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=1) as answer:
                    found: dict[str, Any] = json.load(answer)
                    return found
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def end(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    one = Pod(tmp_path)
    yield one
    one.end()


def test_the_program_gets_its_rank_and_nothing_of_the_users_is_expanded(pod: Pod) -> None:
    pod.prepare("job", command=[sys.executable, "-c", SHOW, "$(NNODES)", "$$", "$(date)"])
    assert pod.start(**{"HUGGINGFACE_HUB_TOKEN": "secret"}).wait(20) == 0
    env, words = json.loads(pod.shown.read_text())
    assert words == ["$(NNODES)", "$$", "$(date)"]
    assert (env["NODE_RANK"], env["HF_TOKEN"]) == ("1", "secret")
    assert env["PET_RDZV_CONF"].startswith("is_host=0,")
    result = json.loads((pod.folder / "log").read_text())
    assert result["state"] == "done"


def test_a_pytorchjobs_rank_comes_from_the_operators_variable(pod: Pod) -> None:
    pod.prepare("pytorchjob", command=[sys.executable, "-c", SHOW])
    assert pod.start(NODE_RANK="", RANK="0").wait(20) == 0
    env, _ = json.loads(pod.shown.read_text())
    assert (env["NODE_RANK"], env["RANK"]) == ("0", "0")
    assert env["PET_RDZV_CONF"].startswith("is_host=1,")


def test_a_set_up_with_several_steps_runs_before(pod: Pod) -> None:
    pod.prepare("job", command=[sys.executable, "-c", SHOW], setupCommand=f"echo '$(id)' > {pod.folder}/made")
    assert pod.start().wait(20) == 0
    assert (pod.folder / "made").read_text() == "$(id)\n"


def test_a_finished_pod_idles_healthily_and_does_not_run_again(pod: Pod) -> None:
    pod.prepare("statefulset", command=[sys.executable, "-c", SHOW])
    assert pod.start().wait(20) == 0
    pod.shown.unlink()
    again = pod.start()
    assert pod.get("/healthz")["state"] == "done"
    assert again.poll() is None
    again.terminate()
    assert again.wait(10) == 0
    assert not pod.shown.exists()


def test_failures_are_counted_and_the_attempt_grows(pod: Pod) -> None:
    pod.prepare("statefulset", command=[sys.executable, "-c", SHOW + "; sys.exit(3)"], maxRestarts=1)
    attempts = []
    for _ in range(2):
        assert pod.start().wait(20) == 1
        attempts.append(json.loads(pod.shown.read_text())[0]["ORCHESTRA_ATTEMPT"])
    assert attempts == ["1", "2"]
    pod.start()
    assert pod.get("/healthz")["state"] == "failed"


def test_a_stop_is_no_failure(pod: Pod) -> None:
    pod.prepare("statefulset", command=[sys.executable, "-c", SHOW + "; import time; time.sleep(60)"], maxRestarts=0)
    for _ in range(2):
        process = pod.start()
        deadline = time.monotonic() + 10
        while not pod.shown.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.terminate()
        assert process.wait(20) == 75
        pod.shown.unlink()
