"""Hot reload on a cluster: from an edit to new code that runs in all workers of two real nodes, before its own imports.

Run it from the repository as root: `python benchmarks/cluster_reload.py [rounds]`. Target: under 1 s. The machine's one
cluster must not be up.

Both ways in one run, of the same job with the same edit: `sync` with the successors waiting, as `sync -w` keeps them,
and suspend + resume, which makes new pods. Measured by the script itself: its first line, before `import torch`, prints
the time; both nodes have this machine's clock.
"""

import os
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))


from cluster_engine import OnCluster, running_operator
from orchestra.api.engine import EngineError, LogQuery
from orchestra.operator.workspace_store import NAME, PORT
from orchestra.plan.status import status_of
from testbed import packages
from testbed.cluster import CannotRunError, Cluster, NotUpError, require_this_machine
from testbed.images import HOST
from testbed.programs import programs
from testbed.steps import on_stderr
from workspace_store import a_bringing_queue_spec, running_store

ROOT = Path(__file__).resolve().parents[1]
_RANKS = 4
_SCRIPT = """\
import time; print(f"version VERSION begins at {time.time():.3f}", flush=True)
import torch
from orchestra.train import Stop, init, progress, result
world = init("out", seed=1)
saved = world.output_dir / "state.pt"
first = int(torch.load(saved)["step"]) if saved.exists() else 0
stop = Stop()
for step in range(first + 1, 1_000_000):
    time.sleep(0.02)
    world.total(torch.ones(1))
    progress(step=step, total_steps=1_000_000)
    if step == first + 1:
        print(f"version VERSION steps at {time.time():.3f}", flush=True)
    if stop.agreed():
        if world.is_first:
            torch.save({"step": step}, saved)
        stop.close()
        result("stopped", step, saved)
        break
world.close()
"""


def times(site: OnCluster, version: int, what: str) -> list[float]:
    """When each rank printed a line; waits until all have."""
    end = time.monotonic() + 300
    while True:
        text = "\n".join(line.text for line in site.engine.logs("hot", LogQuery()))
        found = [float(one) for one in re.findall(rf"^version {version} {what} at ([\d.]+)$", text, re.MULTILINE)]
        if len(found) >= _RANKS:
            return found[-_RANKS:]
        if time.monotonic() > end:
            raise SystemExit(f"version {version} never came:\n{text[-3000:]}")
        time.sleep(0.2)


def measure(site: OnCluster, project: Path, rounds: int) -> list[tuple[float, float, float, float]]:
    """Seconds to new code and to the first step: hot, and cold."""
    os.chdir(project)
    engine, script = site.engine, project / "train.py"

    def edit(version: int) -> float:
        script.write_text(_SCRIPT.replace("VERSION", str(version)))
        return time.time()

    edit(1)
    site.queue("q", **a_bringing_queue_spec() | {"nodeResources": {"gpus": 2, "memory": "4Gi"}})
    site.submit("hot", "python train.py", jobQueue="q", numGPUs=_RANKS, workspace={"source": "local"})
    times(site, 1, "steps")
    site.wait("hot", lambda job: status_of(job).phase == "Running")
    rows, version = [], 1
    for _ in range(rounds):
        engine.preload("hot")
        version += 1
        began = edit(version)
        answer = engine.sync("hot")
        if answer is None or answer.state != "reloaded" or answer.cold:
            raise SystemExit(f"not reloaded: {answer}")
        hot = max(times(site, version, "begins")) - began
        hot_step = max(times(site, version, "steps")) - began
        version += 1
        began = edit(version)
        cold, cold_step = _cold(site, version, began)
        phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in answer.seconds.items())
        print(f"  new code {hot:.2f} s (cold {cold:.2f}), first step {hot_step:.2f} s (cold {cold_step:.2f}); {phases}",
              flush=True)  # fmt: skip
        rows.append((hot, cold, hot_step, cold_step))
    return rows


def _cold(site: OnCluster, version: int, began: float) -> tuple[float, float]:
    site.engine.suspend("hot")
    site.wait("hot", lambda job: status_of(job).phase == "Suspended")
    site.engine.sync("hot")
    site.engine.resume("hot", {})
    begun = max(times(site, version, "begins")) - began
    stepped = max(times(site, version, "steps")) - began
    site.wait("hot", lambda job: status_of(job).phase == "Running")
    return begun, stepped


def main() -> int:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    try:
        require_this_machine()
        packages.ensure(on_stderr())
        programs()  # not part of the measurement
        Cluster.attach()
        print("not measured: a cluster is up; `make cluster-down` first")
        return 0
    except CannotRunError as reason:
        print(f"not measured: {reason}")
        return 0
    except NotUpError:
        pass
    cluster = Cluster()
    cluster.start()
    try:
        with tempfile.TemporaryDirectory() as name, running_store(cluster) as system:
            rows = _in(cluster, Path(name), system, rounds)
    except EngineError as error:
        raise SystemExit(str(error)) from error
    finally:
        cluster.stop()
    hot, cold, hot_step, cold_step = (sorted(column)[len(rows) // 2] for column in zip(*rows, strict=True))
    print(f"edit -> new code in {_RANKS} ranks on 2 nodes before its imports, median of {rounds}: {hot:.2f} s; "
          f"new pods {cold:.2f} s: {cold / hot:.1f} times faster")  # fmt: skip
    print(f"edit -> first step: {hot_step:.2f} s; new pods {cold_step:.2f} s: {cold_step / hot_step:.1f} times faster")
    return 0


def _in(cluster: Cluster, folder: Path, system: str, rounds: int) -> list[tuple[float, float, float, float]]:
    os.environ["ORCHESTRA_SYSTEM_NAMESPACE"] = system
    project = folder / "project"
    project.mkdir()
    flags = ("--image", HOST, "--workspace-url", f"http://{NAME}.{system}.svc:{PORT}")
    with running_operator(cluster, folder / "operator.log", *flags) as log, cluster.control_plane.namespace() as own:
        site = OnCluster(cluster, own, folder, log)
        site.folder = project
        try:
            return measure(site, project, rounds)
        finally:
            os.chdir(ROOT)
            site.close()


if __name__ == "__main__":
    sys.exit(main())
