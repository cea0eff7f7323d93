"""Real torchrun under the embedded engine: crashes, stops and losses, and the loss comes out the same."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from local_engine import Local
from orchestra.api.job import TorchrunJob

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

STEPS = 64
COMMAND = "python -m orchestra.train.smoke --epochs 4 --samples 4096 --batch 256 --checkpoint-every 4 --step-delay 0.05"
FINAL_LOSS = re.compile(r"\[DONE\] steps=(\d+) loss=([0-9.e-]+)")
SLOW = 240.0


def final_loss(local: Local, name: str) -> float:
    steps, loss = FINAL_LOSS.findall(local.log(name))[-1]
    assert int(steps) == STEPS
    return float(loss)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The final loss of a run that nothing happens to."""
    local = Local(tmp_path_factory.mktemp("undisturbed"))
    local.submit("undisturbed", COMMAND, procsPerNode=2, numNodes=1)
    assert local.rest("undisturbed", SLOW).status.phase == "Succeeded"  # type: ignore[union-attr]
    return final_loss(local, "undisturbed")


def shape(nodes: int) -> dict[str, Any]:
    return {"numNodes": nodes, "procsPerNode": 2 // nodes}


def ranks(local: Local) -> list[int]:
    """Pids of the ranks' main processes."""
    found = []
    for pid in local.processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"orchestra.train.smoke" in words and b"rank" not in words and b"--no-python" not in words:
                found.append(pid)
    return found


def crash_one_rank(local: Local, name: str, chance: random.Random) -> None:
    local.step(name, chance.randint(2, STEPS // 2), SLOW)
    os.kill(chance.choice(ranks(local)), signal.SIGKILL)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_killed_rank_is_restarted_and_the_loss_is_the_same(local: Local, undisturbed: float, nodes: int) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    local.submit("crashed", COMMAND, **shape(nodes))
    crash_one_rank(local, "crashed", random.Random(seed))
    job = local.rest("crashed", SLOW)
    assert job.status is not None
    assert job.status.phase == "Succeeded", local.log("crashed")
    assert (job.status.restarts or 0) + (job.status.attempt or 0) >= 2
    assert final_loss(local, "crashed") == pytest.approx(undisturbed, abs=1e-5)
    local.nothing_left()


def test_suspend_and_resume_on_another_size_end_with_the_same_loss(local: Local, undisturbed: float) -> None:
    local.submit("moved", COMMAND, numNodes=2, procsPerNode=1)
    local.step("moved", 8, SLOW)
    local.engine.suspend("moved")
    job = local.rest("moved", SLOW)
    assert job.status is not None
    assert (job.status.phase, "saved at step" in str(job.status.conditions)) == ("Suspended", True)
    local.nothing_left()
    local.engine.resume("moved", {"numNodes": 1})
    assert local.rest("moved", SLOW).status.phase == "Succeeded"  # type: ignore[union-attr]
    assert "resume" in local.log("moved").lower()
    assert final_loss(local, "moved") == pytest.approx(undisturbed, abs=1e-4)


@pytest.mark.parametrize("victim", ["agent", "torchrun", "supervisor"])
def test_nothing_survives_the_death_of_anything(local: Local, victim: str) -> None:
    local.submit("doomed", COMMAND, restartPolicy="Never", **shape(1))
    local.step("doomed", 2, SLOW)
    words = {"agent": " run ", "torchrun": "torchrun", "supervisor": "orchestra.local.supervisor"}[victim]
    pid = next(
        pid for pid, line in local.processes().items() if words in line and " rank " not in line.split("--no-python")[0]
    )
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    while ranks(local) and time.monotonic() - begun < 20:
        time.sleep(0.05)
    assert not ranks(local)
    local.rest("doomed", SLOW)
    local.nothing_left()


def test_a_multi_node_gpu_file_runs_here_as_cpu_processes(local: Local) -> None:
    command = "python -m orchestra.train.smoke --epochs 1"
    file = local.home.root / "job.yaml"
    file.write_text(
        "apiVersion: torchrun.ai/v1alpha1\nkind: TorchrunQueue\nmetadata: {name: h100}\n"
        "spec: {nodeResources: {gpus: 1}, kaiQueue: h100, storage: {checkpoints: {}}}\n---\n"
        "apiVersion: torchrun.ai/v1alpha1\nkind: TorchrunJob\nmetadata: {name: same-file}\n"
        f"spec: {{jobQueue: h100, numGPUs: 2, command: {command} --output-dir /out/run}}\n"
    )
    refused = local.cli("run", "-f", str(file))
    assert refused.returncode == 1
    assert "needs 2 GPUs and this machine has" in refused.stderr
    result = local.cli("run", "-f", str(file), "--cpu")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[DONE]" in result.stdout
    assert result.stdout.count("[DDP] rank") == 2


def test_an_elastic_job_takes_a_lost_node_back_in(local: Local, undisturbed: float) -> None:
    command = COMMAND.replace("0.05", "0.3")
    local.submit("stretchy", command, numNodes=2, procsPerNode=1, elastic={"minNodes": 1, "maxNodes": 2}, maxRestarts=0)
    local.step("stretchy", 6, SLOW)
    agents = [pid for pid, line in local.processes().items() if " run " in line and "/nodes/1/launch.json" in line]
    os.kill(agents[0], signal.SIGKILL)
    job = local.rest("stretchy", SLOW)
    assert job.status is not None
    assert job.status.phase == "Succeeded", local.log("stretchy")
    assert any(event.reason == "NodeLost" for event in local.engine.events("stretchy"))
    assert final_loss(local, "stretchy") == pytest.approx(undisturbed, abs=1e-4)
    local.nothing_left()


def test_a_torchrun_script_that_fails_names_its_rank(local: Local, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('rank one is unwell')\nimport time\ntime.sleep(30)\n"
    )
    local.submit("unwell", f"python {script}", restartPolicy="Never", **shape(1))
    job: TorchrunJob = local.rest("unwell", SLOW)
    assert job.status is not None
    assert job.status.failure is not None
    assert (job.status.failure.rank, job.status.failure.reason) == (1, "Exception")
    assert "rank one is unwell" in (job.status.failure.message or "")


# ---- the full counts: make soak


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("nodes", [1, 2])
def test_twenty_jobs_with_a_crash_each_recover(local: Local, undisturbed: float, nodes: int) -> None:
    for number in range(20):
        seed = random.randrange(10**6)
        name = f"crash-{number}"
        print(f"{nodes} nodes, job {number}, seed {seed}", flush=True)
        local.submit(name, COMMAND, **shape(nodes))
        crash_one_rank(local, name, random.Random(seed))
        assert local.rest(name, SLOW).status.phase == "Succeeded", local.log(name)  # type: ignore[union-attr]
        assert final_loss(local, name) == pytest.approx(undisturbed, abs=1e-5)
        local.nothing_left()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_one_job_survives_twenty_crashes(local: Local, undisturbed: float) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    local.submit("tough", COMMAND.replace("0.05", "0.5"), maxRestarts=30, **shape(1))
    for _ in range(20):
        before = local.engine.get("tough").status
        step = (before.progress.step if before and before.progress else 0) or 0
        local.step("tough", min(step + 1, STEPS - 2), SLOW)
        victims = ranks(local)
        if victims:
            os.kill(chance.choice(victims), signal.SIGKILL)
        time.sleep(chance.uniform(2, 6))
    assert local.rest("tough", 600).status.phase == "Succeeded", local.log("tough")  # type: ignore[union-attr]
    assert final_loss(local, "tough") == pytest.approx(undisturbed, abs=1e-5)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_stops_with_loaders_and_saves_in_flight_are_all_saved(local: Local) -> None:
    for number in range(20):
        seed = random.randrange(10**6)
        chance = random.Random(seed)
        name = f"stop-{number}"
        print(f"stop {number}, seed {seed}", flush=True)
        command = f"{COMMAND} --num-workers 2".replace("--checkpoint-every 4", "--checkpoint-every 1")
        local.submit(name, command, **shape(chance.choice([1, 2])))
        local.step(name, chance.randint(1, STEPS // 2), SLOW)
        time.sleep(chance.uniform(0, 0.3))
        local.engine.suspend(name)
        job = local.rest(name, SLOW)
        assert job.status is not None
        assert job.status.phase == "Suspended"
        assert "saved at step" in str(job.status.conditions), local.log(name)
        local.nothing_left()
