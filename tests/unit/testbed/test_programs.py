"""Programs come from the first source that has them, and are built once, by one run at a time."""

import fcntl
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from testbed import release_download
from testbed.go_build import go_mod_for_kubernetes, pinned_version
from testbed.programs import (
    ProgramsUnavailable,
    cache_folder,
    kubernetes_version,
    program_from_folder,
    programs,
)
from testbed.progress import Progress
from testbed.waiting import wait_until

needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no internet, and Go's own caches where they are."""
    if shutil.which("go"):
        for name in ("GOCACHE", "GOMODCACHE"):
            known = subprocess.run(["go", "env", name], capture_output=True, text=True, check=True)
            monkeypatch.setenv(name, known.stdout.strip())
    monkeypatch.setattr(release_download, "_unreachable", {})
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv("ORCHESTRA_KUBERNETES_VERSION", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def quiet() -> Progress:
    return Progress(io.StringIO())


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    """A tiny Go module."""
    folder = tmp_path / "hello"
    folder.mkdir()
    (folder / "go.mod").write_text("module orchestra.test/hello\n\ngo 1.21\n")
    (folder / "main.go").write_text('package main\n\nfunc main() { println("hello") }\n')
    return folder


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_envtests_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = tmp_path / "assets"
    etcd = executable(assets / "etcd")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert dict(programs("etcd")) == {"etcd": etcd}


def test_without_any_source_the_error_names_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: Progress
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProgramsUnavailable) as caught:
        programs("kube-scheduler", progress=quiet)
    for reason in ("KUBEBUILDER_ASSETS is not set", "not in the cache", "https://dl.k8s.io", "no Go toolchain"):
        assert reason in str(caught.value)


def test_the_version_is_the_pinned_one_unless_told(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert kubernetes_version().startswith("1.35.")
    monkeypatch.setenv("ORCHESTRA_KUBERNETES_VERSION", "v1.34.2")
    assert kubernetes_version() == "1.34.2"
    assert cache_folder() == cache / "orchestra" / "testbed" / "1.34.2"
    monkeypatch.setenv("ORCHESTRA_KUBERNETES_VERSION", "1.34")
    with pytest.raises(ProgramsUnavailable, match=r"must be like 1\.35\.8"):
        kubernetes_version()


def test_another_kubernetes_gets_its_own_libraries() -> None:
    ours = "module m\n\ngo 1.26\n\nrequire (\n\tgo.etcd.io/etcd/server/v3 v3.6.5\n\tk8s.io/kubernetes v1.35.8\n)\n"
    theirs = "replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/kms => ./staging/src/k8s.io/kms\n)\n"
    made = go_mod_for_kubernetes(ours, theirs, "1.34.2")
    assert pinned_version(made, "k8s.io/kubernetes") == "1.34.2"
    assert pinned_version(made, "go.etcd.io/etcd/server/v3") == "3.6.5"
    assert "replace k8s.io/api => k8s.io/api v0.34.2\nreplace k8s.io/kms => k8s.io/kms v0.34.2\n" in made


@needs_go
def test_a_program_is_built_once_and_again_when_its_source_changes(hello: Path, quiet: Progress) -> None:
    program = program_from_folder("hello", hello, progress=quiet)
    assert said(program) == "hello\n"
    built_at = program.stat().st_mtime_ns
    assert program_from_folder("hello", hello, progress=quiet).stat().st_mtime_ns == built_at
    (hello / "main.go").write_text('package main\n\nfunc main() { println("changed") }\n')
    assert said(program_from_folder("hello", hello, progress=quiet)) == "changed\n"


@needs_go
def test_a_build_that_fails_shows_the_compilers_words(hello: Path, quiet: Progress) -> None:
    (hello / "main.go").write_text("package main\n\nfunc main() { missing() }\n")
    with pytest.raises(ProgramsUnavailable, match="undefined: missing"):
        program_from_folder("hello", hello, progress=quiet)
    assert not (cache_folder() / "bin" / "hello").exists()


@needs_go
def test_two_runs_at_once_build_once(hello: Path) -> None:
    runs = [start_build(hello) for _ in range(2)]
    for run in runs:
        out, error = run.communicate(timeout=200)
        assert run.returncode == 0, error
        assert said(Path(out.strip())) == "hello\n"
    assert (cache_folder() / "logs" / "hello.log").read_text().count(" build ") == 1


@needs_go
def test_the_second_run_waits_and_says_so(hello: Path, tmp_path: Path) -> None:
    cache_folder().mkdir(parents=True)
    said_so = tmp_path / "stderr"
    with (cache_folder() / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with said_so.open("w") as stderr:
            run = start_build(hello, stderr=stderr)
        wait_until("it says that it waits", lambda: "waiting for another run" in said_so.read_text())
        assert run.poll() is None
    run.communicate(timeout=200)
    assert run.returncode == 0, said_so.read_text()


def start_build(module: Path, stderr: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
    script = """
import sys, pathlib
from testbed.programs import program_from_folder
print(program_from_folder("hello", pathlib.Path(sys.argv[1])))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", script, str(module)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)


def said(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, check=True).stderr
