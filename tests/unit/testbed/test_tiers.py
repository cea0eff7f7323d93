"""Where a tier cannot run, its tests are counted as not run, and under CI they fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
from testbed.tiers import Tier, TierUnavailable, register_tier

def test_needs_a_control_plane(control_plane): ...
def test_needs_a_namespace(namespace): ...
@pytest.mark.control_plane
def test_starts_its_own(): ...
def test_needs_nothing(): ...
@pytest.mark.skip(reason="its own wish")
def test_skipped(): ...
"""

FAILING = """
import pytest

class Thing:
    def gather_logs(self, to):
        to.mkdir(parents=True)
        (to / "thing.log").write_text("what happened")
        return to

@pytest.fixture
def thing():
    return Thing()

def test_fails(thing):
    assert False
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = control_plane: tier 1\n")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["testbed.pytest_plugin"]\n')
    return tmp_path


def run_pytest(project: Path, **environment: str) -> tuple[int, str]:
    """Run pytest on a machine without programs, internet and Go."""
    bare = {
        "PATH": str(project),
        "HOME": str(project),
        "https_proxy": "http://127.0.0.1:9",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        **environment,
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(project)]
    done = subprocess.run(command, cwd=project, env=bare, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout


def test_tests_of_a_missing_tier_are_not_run_and_counted(project: Path) -> None:
    (project / "test_it.py").write_text(TESTS)
    code, out = run_pytest(project)
    assert "1 passed, 1 skipped, 3 not run" in out.splitlines()[-1]
    assert "3 not run: tier 1 (control plane) cannot run here" in out
    assert "no Go toolchain" in out
    assert code == 0


def test_under_ci_a_missing_tier_is_a_failure(project: Path) -> None:
    (project / "test_it.py").write_text(TESTS)
    code, out = run_pytest(project, CI="true")
    assert "1 passed, 1 skipped, 3 errors" in out.splitlines()[-1]
    assert "cannot run here, and under CI it must" in out
    assert code == 1


def test_a_missing_tier_that_no_test_needs_is_not_mentioned(project: Path) -> None:
    (project / "test_it.py").write_text("def test_needs_nothing(): ...\n")
    code, out = run_pytest(project, CI="true")
    assert code == 0
    assert "cannot run here" not in out


def test_logs_of_a_failed_test_are_gathered_and_their_folder_is_printed(project: Path) -> None:
    (project / "test_it.py").write_text(FAILING)
    code, out = run_pytest(project)
    folder = project / "build" / "testbed-logs" / "test_it.py-test_fails"
    assert code == 1
    assert f"gathered in {folder}" in out
    assert (folder / "thing" / "thing.log").read_text() == "what happened"
