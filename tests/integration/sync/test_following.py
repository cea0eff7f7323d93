"""New code for workers that follow the store: real agents, real sidecars, a real store; all change, or none."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import a_job
from integration.agent.worker import Worker, until
from integration.sync.store_process import StoreProcess
from local_engine import COOPERATIVE
from orchestra.api.base import from_builtins, to_builtins
from orchestra.api.engine import EngineError
from orchestra.api.job import TorchrunJob
from orchestra.cluster.kinds import Pod
from orchestra.cluster.reloading import Reloading, snapshot_of
from orchestra.cluster.workspace import send_folder
from orchestra.kube.objects import Metadata
from orchestra.sync.snapshot import Limits

pytestmark = pytest.mark.control_plane
UID = "0f0f0f0f-1111-2222-3333-444455556666"


class Site:
    """Two workers, each with its sidecar, as two pods would have them."""

    def __init__(self, store: StoreProcess, namespace: str, project: Path, folder: Path) -> None:
        self.store, self.namespace, self.project, self.folder = store, namespace, project, folder
        self.job = a_job("train", workspace={"snapshot": "0" * 64}, numNodes=2)
        self._be(metadata={"uid": UID}, status={"phase": "Running", "attempt": 1})
        self.workers, self.sidecars = list[Worker](), list[subprocess.Popen[bytes]]()
        self.patches: list[dict[str, Any]] = []

    def _be(self, **changes: dict[str, Any]) -> None:
        plain = to_builtins(self.job)
        for part, values in changes.items():
            plain[part] = {**plain.get(part, {}), **values}
        self.job = from_builtins(plain, TorchrunJob)

    def _written(self, patch: dict[str, Any]) -> TorchrunJob:
        self.patches.append(patch)
        notes = {**self.job.metadata.annotations, **patch["metadata"]["annotations"]}
        self._be(metadata={"annotations": {key: value for key, value in notes.items() if value}},
                 spec=patch.get("spec", {}))  # fmt: skip
        return self.job

    def reloading(self) -> Reloading:
        pods = [Pod(Metadata(name=f"train-{node}", labels={"torchrun.ai/attempt": "1"})) for node in range(2)]
        return Reloading(self.store.ask(self.namespace), self.job, pods, self._written)

    def start(self) -> None:
        self._be(status={"phase": "Pending"})
        assert self.reloading().sync(self.project, []) is not None
        self._be(status={"phase": "Running"})
        token = self.folder / "token"
        token.write_text(self.store.token(self.namespace))
        for node in range(2):
            worker = Worker(self.folder / f"pod-{node}")
            orders = {
                "job": "train", "uid": UID, "node": node, "nodes": 2, "worker": f"train-{node}",
                "workspace": {"url": self.store.url, "snapshot": snapshot_of(self.job), "tokenFile": str(token)},
                "codeFolder": str(worker.code), "socket": str(worker.folder / "orders.sock"),
                "state": str(worker.folder / "sync"),
            }  # fmt: skip
            (self.folder / f"orders-{node}.json").write_text(json.dumps(orders))
            subprocess.run(self._words("fetch", node), check=True)
            out = self.folder / f"out-{node}"
            out.mkdir()
            worker.start(
                [sys.executable, "train.py", "5000", "0.05"], node=node, nodes=2, ordersSocket=orders["socket"],
                env={"ORCHESTRA_OUTPUT_DIR": str(out), "ORCHESTRA_PRELOAD": "json"},
            )  # fmt: skip
            self.workers.append(worker)
            self.follow(node)
        for worker in self.workers:
            worker.says("version 1")
        until(lambda: len(self.reloading().running()) == 1, 60, "both workers have asked")

    def _words(self, what: str, node: int) -> list[str]:
        return [sys.executable, "-m", "orchestra.sync.worker", what, str(self.folder / f"orders-{node}.json")]

    def follow(self, node: int) -> None:
        self.sidecars[node : node + 1] = [subprocess.Popen(self._words("follow", node))]

    def edit(self, version: int) -> None:
        (self.project / "version.py").write_text(f"N = {version}\n")

    def begun(self, version: int) -> list[int]:
        """The steps at which a version began, one a worker."""
        found: list[int] = []
        for worker in self.workers:
            lines = worker.tagged(f"r{len(found)}")
            for at, line in enumerate(lines):
                if line == f"version {version}" and at + 1 < len(lines):
                    found.append(int(lines[at + 1].split()[-1]))
                    break
        return found

    def close(self) -> None:
        for sidecar in self.sidecars:
            sidecar.kill()
            sidecar.wait()
        for worker in self.workers:
            worker.end()


@pytest.fixture
def site(store: StoreProcess, namespace: str, tmp_path: Path) -> Iterator[Site]:
    project = tmp_path / "project"
    (project / "part").mkdir(parents=True)
    text = COOPERATIVE.read_text()
    told = "import version\nprint('version', version.N, flush=True)\nbegin = json"
    (project / "train.py").write_text(text.replace("begin = json", told))
    (project / "version.py").write_text("N = 1\n")
    (project / "part" / "old.txt").write_text("goes\n")
    made = Site(store, namespace, project, tmp_path / "site")
    made.folder.mkdir()
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_all_workers_change_at_once_and_go_on_where_they_were(site: Site) -> None:
    agents = [worker.process.pid for worker in site.workers if worker.process]
    assert site.reloading().sync(site.project, []) is None, "nothing has changed"
    (site.workers[0].code / "made-by-the-program.txt").write_text("stays\n")
    for version in (2, 3):
        site.edit(version)
        shutil.rmtree(site.project / "part", ignore_errors=True)
        reloading = site.reloading()
        answer = reloading.sync(site.project, [])
        assert answer is not None
        assert (answer.state, answer.saved, answer.cold) == ("reloaded", True, {}), answer
        phases = ["send", "stage and acknowledge", "write down", "stop and save", "flip", "start"]
        assert list(answer.seconds) == phases
        until(lambda version=version: len(site.begun(version)) == 2, 60, f"version {version} in both")  # type: ignore[misc]
        until(reloading.stepped_at, 60, "a step with the new code") if answer.step is not None else None
        assert site.reloading().running() == {snapshot_of(site.job)}
    assert site.job.metadata.annotations["torchrun.ai/code-generation"] == "2"
    assert [worker.process.pid for worker in site.workers if worker.process] == agents
    assert all(worker.process and worker.process.poll() is None for worker in site.workers), "the same agents"
    for worker in site.workers:
        assert not (worker.code / "part").exists(), "a folder that is empty now goes too"
    assert (site.workers[0].code / "made-by-the-program.txt").exists()


def test_a_late_worker_keeps_everybody_on_the_old_code(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before, process = snapshot_of(site.job), site.workers[1].process
    assert process is not None
    site.edit(2)
    monkeypatch.setenv("ORCHESTRA_RELOAD_SECONDS", "2")
    os.kill(process.pid, signal.SIGSTOP)
    try:
        answer = site.reloading().sync(site.project, [])
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert answer is not None
    assert (answer.state, answer.late) == ("refused", ["train-1"]), answer
    assert "nobody has changed" in answer.message
    assert snapshot_of(site.job) == before
    assert not site.begun(2)
    monkeypatch.delenv("ORCHESTRA_RELOAD_SECONDS")
    again = site.reloading().sync(site.project, [])
    assert again is not None
    assert again.state == "reloaded", again
    until(lambda: len(site.begun(2)) == 2, 60, "version 2 in both")


def test_a_store_that_dies_half_way_leaves_nobody_waiting(site: Site) -> None:
    """Killed when all are ready: they let go and train on; the next change is taken as always."""
    site.edit(2)

    class Dying(Reloading):
        def _begin(self, snapshot: str) -> Any:
            change = super()._begin(snapshot)
            self._until(change, ("prepared",))
            site.store.kill()
            site.store.start()
            return change

    pods = [Pod(Metadata(name=f"train-{node}", labels={"torchrun.ai/attempt": "1"})) for node in range(2)]
    dying = Dying(site.store.ask(site.namespace), site.job, pods, site._written)
    with pytest.raises(EngineError, match="started anew in the middle"):
        dying.sync(site.project, [])
    answer = site.reloading().sync(site.project, [])
    assert answer is not None
    assert answer.state == "reloaded", answer
    until(lambda: len(site.begun(2)) == 2, 60, "version 2 in both")


def test_a_sidecar_that_dies_half_way_leaves_nobody_waiting(site: Site) -> None:
    site.edit(2)
    reloading = site.reloading()
    taken = send_folder(site.store.ask(site.namespace), site.project, [], Limits())
    change = reloading._until(reloading._begin(taken.id), ("prepared",))
    assert change.state == "prepared"
    site.sidecars[1].kill()
    site.sidecars[1].wait()
    site.workers[1].says("new code was not taken", 60)
    site.follow(1)
    progress = site.workers[1].folder / "ranks" / "1" / "progress.json"
    step = json.loads(progress.read_text())["step"]
    until(lambda: json.loads(progress.read_text())["step"] > step, 60, "it trains on")


def test_changed_requirements_ask_for_all_workers_anew(store: StoreProcess, namespace: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("one\n")
    taken = send_folder(store.ask(namespace), project, [], Limits())
    site = Site(store, namespace, project, tmp_path)
    site._be(spec={"workspace": {"snapshot": taken.id}, "environment": {"requirements": "requirements.txt"}})
    assert site.reloading().sync(project, []) is None
    (project / "requirements.txt").write_text("another\n")
    answer = site.reloading().sync(project, [])
    assert answer is not None
    assert (answer.state, "started anew" in answer.message) == ("restarted", True)
    assert site.job.metadata.annotations["torchrun.ai/restart-attempt"] == "1"
    assert snapshot_of(site.job) != taken.id
