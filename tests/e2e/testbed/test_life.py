"""Clusters come and go, in order and otherwise, and leave the machine as it was."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from testbed import leftovers, machine, pods
from testbed.cgroups import Cgroups
from testbed.cluster import Cluster, NotUpError
from testbed.waiting import wait_until

MARK = "ORCHESTRA_TESTBED_MARK"
TESTS = Path(__file__).resolve().parents[2]


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, no_cluster: None) -> str:  # noqa: ARG001
    """A value that every process started by this test carries in its environment."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    return value


def say_hello(cluster: Cluster) -> None:
    with cluster.namespace() as namespace:
        for node in cluster.nodes:
            name = f"hello-{node.name}"
            pods.create(cluster.api, namespace, pods.pod(name, ["echo", "hello"], node=node.name))
        for node in cluster.nodes:
            pods.wait_for_phase(cluster.api, namespace, f"hello-{node.name}", "Succeeded")


def leave_a_pod_running(cluster: Cluster) -> None:
    pods.create(cluster.api, "default", pods.pod("left", ["sleep", "3600"], node="n1"))
    pods.wait_for_phase(cluster.api, "default", "left", "Running")


def test_three_clusters_in_a_row_leave_the_machine_as_it_was(mark: str) -> None:
    before = machine.look()
    for _ in range(3):
        with Cluster() as cluster:
            say_hello(cluster)
            leave_a_pod_running(cluster)
        assert machine.look() == before
        assert machine.marked(MARK, mark) == {}
        assert Cgroups().pids() == set()
        assert leftovers.found() == []


def test_make_cluster_prints_all_a_shell_needs_and_goes_without_a_trace(mark: str) -> None:
    before = machine.look()
    testbed = f"{sys.executable} -m testbed"

    def shell(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=800)

    up = shell(f"{testbed} up")
    assert up.returncode == 0, up.stderr
    export_line = up.stdout.splitlines()[-1]
    used = shell(f"{export_line} && kubectl get nodes -o name && command -v kubectl")

    assert used.stdout.splitlines()[:2] == ["node/n0", "node/n1"], used.stderr
    assert str(leftovers.FOLDER) in used.stdout.splitlines()[2]
    assert len(machine.marked(MARK, mark)) > 0, "the cluster must outlive the command that started it"
    say_hello(Cluster.attach())
    again = shell(f"{testbed} up")
    assert "up already" in again.stderr
    assert shell(f"{testbed} down").returncode == 0
    assert machine.look() == before
    assert machine.marked(MARK, mark) == {}
    with pytest.raises(NotUpError):
        Cluster.attach()


def test_a_cluster_whose_every_process_was_killed_is_cleared_by_the_next_one(mark: str) -> None:
    before = machine.look()
    Cluster(kept=True).start()
    leave_a_pod_running(Cluster.attach())

    for pid in [*machine.marked(MARK, mark), *Cgroups().pids()]:
        os.kill(pid, signal.SIGKILL)
    wait_until("everything is dead", lambda: not machine.marked(MARK, mark) and not Cgroups().pids())
    assert machine.look() != before

    said: list[str] = []
    with Cluster(say=said.append) as cluster:
        say_hello(cluster)
    assert any("cleared" in step for step in said)
    assert machine.look() == before


def test_a_cluster_dies_with_a_test_run_that_was_killed_and_the_next_one_clears_up(mark: str) -> None:
    before = machine.look()
    script = "import testbed.cluster as c, time; c.Cluster().start(); print('up', flush=True); time.sleep(600)"
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "up\n"
    run.kill()
    run.wait()
    run.stdout.close()

    with Cluster() as cluster:
        say_hello(cluster)

    assert machine.look() == before
    assert machine.marked(MARK, mark) == {}


def test_a_second_cluster_on_the_machine_is_refused_with_a_clear_message(mark: str) -> None:  # noqa: ARG001
    with Cluster(), pytest.raises(leftovers.ClusterBusyError, match=f"process {os.getpid()} "):
        Cluster().start()
