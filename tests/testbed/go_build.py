"""Programs built from source by the Go toolchain, through the Go module proxy."""

import hashlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from testbed.processes import dying_with_parent
from testbed.progress import Progress


class GoBuildError(Exception):
    """A program could not be built; the text says why, and where the whole log is."""


def go_program() -> Path:
    """The Go toolchain; GoBuildError when there is none."""
    found = shutil.which("go")
    if found is None:
        raise GoBuildError("there is no Go toolchain on the PATH (https://go.dev/dl has it)")
    return Path(found)


def go_build(
    module: Path, package: str, target: Path, *, log: Path, ldflags: str, progress: Progress, title: str
) -> None:
    """Build one package of the module in this folder. `target` appears whole or not at all."""
    unfinished = target.with_name(f".{target.name}.new")
    command = ["build", "-trimpath", "-ldflags", ldflags, "-o", str(unfinished), package]
    began = time.monotonic()
    run_go(command, module, log=log, progress=progress, title=title)
    unfinished.replace(target)
    progress.done(f"{title}: done in {time.monotonic() - began:.0f} s")


def run_go(arguments: Sequence[str], folder: Path, *, log: Path, progress: Progress, title: str) -> None:
    """Run the Go tool in a folder; its output goes to the log. It dies with us, so that a lock we hold stays
    true.
    """
    command = [str(go_program()), *arguments]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"$ cd {folder} && {' '.join(command)}\n".encode())
        output.flush()
        process = subprocess.Popen(
            dying_with_parent(command, cwd=folder), stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        try:
            while process.poll() is None:
                progress.update(title)
                try:
                    process.wait(timeout=1)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        progress.done(f"{title}: failed")
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise GoBuildError(f"{title} failed (go ended with {process.returncode}). The end of {log}:\n{tail}")


def copy_module(source: Path, target: Path) -> Path:
    """A writable copy of a module's folder; the module cache is read-only."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for folder in [target, *(path for path in target.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)
    return target


def download_module(module: str, version: str, *, log: Path) -> Path:
    """The folder in Go's (read-only) module cache that holds this version of a module."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [str(go_program()), "mod", "download", "-json", f"{module}@{version}"]
    answer = subprocess.run(command, cwd=log.parent, capture_output=True, text=True, check=False)
    try:
        return Path(json.loads(answer.stdout)["Dir"])
    except (ValueError, KeyError):
        raise GoBuildError(f"cannot download {module}@{version}:\n{answer.stdout}{answer.stderr}") from None


def module_fingerprint(folder: Path, *further: str) -> str:
    """Changes when the sources, the pins or anything in `further` do."""
    digest = hashlib.sha256("\0".join(further).encode())
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".go" or path.name in ("go.mod", "go.sum"):
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def pinned_version(go_mod: str, module: str) -> str:
    """The version without its v that a go.mod requires of a module."""
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} v(\S+)", go_mod, re.MULTILINE)
    if found is None:
        raise GoBuildError(f"go.mod does not require {module}")
    return found[1]


def go_mod_for_kubernetes(our_go_mod: str, kubernetes_go_mod: str, version: str) -> str:
    """Our go.mod for another version of Kubernetes, without the indirect pins, which `go mod tidy` then finds
    anew.

    Kubernetes requires its own libraries (k8s.io/api, ...) from folders beside it. As a dependency it has no
    such folders, so each is replaced with its release: Kubernetes 1.34.2 goes with k8s.io/api 0.34.2.
    """
    libraries = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", kubernetes_go_mod, re.MULTILINE)
    if not libraries:
        raise GoBuildError(f"the go.mod of Kubernetes {version} names no ./staging/ folders; we need those")
    go_version = re.search(r"^go \S+$", our_go_mod, re.MULTILINE)
    assert go_version is not None
    lines = [
        "module orchestra.test/kube",
        go_version[0],
        f"require k8s.io/kubernetes v{version}",
        f"require go.etcd.io/etcd/server/v3 v{pinned_version(our_go_mod, 'go.etcd.io/etcd/server/v3')}",
        *(f"replace {library} => {library} v0.{version.removeprefix('1.')}" for library in libraries),
    ]
    return "\n".join(lines) + "\n"
