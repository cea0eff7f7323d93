"""Verbs on rendered jobs that need a real API server and its controllers, but no node: their pods stay Pending."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from builders import a_cpu_queue, a_job
from orchestra.render import Target
from orchestra.render.torchrunjob import torchrunjob
from orchestra.render.yaml_text import without_comments
from testbed.control_plane import ControlPlane
from testbed.waiting import wait_until

Orchestra = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def orchestra(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Orchestra:
    """Our own program, as a user runs it."""

    def run(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        where = ["--kubeconfig", str(control_plane.admin_kubeconfig), "-n", namespace]
        command = [str(Path(sys.executable).with_name("orchestra")), verb, *words, *where]
        env = os.environ | {"ORCHESTRA_HOME": str(tmp_path / "home")}
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path, env=env)

    return run


def deploy(orchestra: Orchestra, folder: Path, target: Target) -> None:
    documents = torchrunjob(a_cpu_queue(image="image"), a_job("deployed", numNodes=2))
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump_all([without_comments(one) for one in documents]))
    done = orchestra("apply", "--target", target, str(file))
    assert done.returncode == 0, done.stderr


def pods(control_plane: ControlPlane, namespace: str) -> set[str]:
    found = control_plane.admin.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {pod["metadata"]["uid"] for pod in found}


def test_recreate_ends_all_pods_before_the_first_new_one(
    control_plane: ControlPlane, namespace: str, orchestra: Orchestra, tmp_path: Path
) -> None:
    deploy(orchestra, tmp_path, "statefulset")
    wait_until("both pods are there", lambda: len(pods(control_plane, namespace)) == 2)
    before = pods(control_plane, namespace)
    done = orchestra("restart", "deployed", "--recreate")
    assert done.returncode == 0, done.stderr
    wait_until("both pods are there again", lambda: len(pods(control_plane, namespace)) == 2)
    assert not before & pods(control_plane, namespace), "other pods"


def test_a_job_that_cannot_be_scaled_says_why_and_what_to_do(orchestra: Orchestra, tmp_path: Path) -> None:
    deploy(orchestra, tmp_path, "job")
    done = orchestra("scale", "deployed", "--nodes", "3")
    assert done.returncode == 1
    assert "a Job keeps the size it was created with; delete it (what it saved stays)" in done.stderr
