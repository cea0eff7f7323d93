"""Where the programs of the testbed come from.

In this order: the folder `KUBEBUILDER_ASSETS` (envtest users have one), our cache, the official download, and
last a build from source. Kubernetes is the version that `go/kube/go.mod` pins, or
`ORCHESTRA_KUBERNETES_VERSION`.
"""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from testbed.go_build import (
    GoBuildError,
    copy_module,
    download_module,
    go_build,
    go_mod_for_kubernetes,
    module_fingerprint,
    pinned_version,
    run_go,
)
from testbed.progress import Progress
from testbed.release_download import DownloadError, download, release_of

KUBERNETES_PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
)
PROGRAMS = (*KUBERNETES_PROGRAMS, "coredns")

_GO = Path(__file__).resolve().parent / "go"


class ProgramsUnavailable(Exception):
    """A program can be had from none of its sources; the text says why for each of them."""


class Programs(Mapping[str, Path]):
    """Paths by program name, all of them there."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)

    def __getitem__(self, name: str) -> Path:
        return self._paths[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


class _CacheRecord(msgspec.Struct):
    """Stands beside a cached program: what it was made of."""

    fingerprint: str
    source: str


def kubernetes_version() -> str:
    """The version in use, such as 1.35.8."""
    version = os.environ.get("ORCHESTRA_KUBERNETES_VERSION", "").strip().removeprefix("v")
    if not version:
        return _pinned_kubernetes()
    if not re.fullmatch(r"1\.\d+\.\d+", version):
        raise ProgramsUnavailable(f"ORCHESTRA_KUBERNETES_VERSION is {version!r}; it must be like 1.35.8")
    return version


def cache_folder() -> Path:
    """Outside the repository, one for each version of Kubernetes."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "orchestra" / "testbed" / kubernetes_version()


def programs(*names: str, progress: Progress | None = None) -> Programs:
    """The paths of these programs, or of all. The first call ever may take minutes, and shows its progress.

    Two runs never build at the same time: the second waits for the first and finds its work done.
    """
    wanted = names or PROGRAMS
    if unknown := set(wanted) - set(PROGRAMS):
        raise ValueError(f"no such programs in the testbed: {', '.join(sorted(unknown))}")
    say = progress or Progress()
    at_hand = {name: _from_assets(name) or _cached(name, _fingerprint(name)) for name in wanted}
    found = {name: path for name, path in at_hand.items() if path is not None}
    missing = [name for name in wanted if name not in found]
    if missing:
        with _cache_lock(say):
            for number, name in enumerate(missing, 1):
                place = f"{name} ({number} of {len(missing)})"
                found[name] = _cached(name, _fingerprint(name)) or _obtain(name, place, say)
    return Programs(found)


def program_from_folder(
    name: str, module: Path, package: str = ".", *, ldflags: str = "-s -w", progress: Progress | None = None
) -> Path:
    """A further program of ours, built inside the folder of its Go module, kept in the same cache."""
    fingerprint = module_fingerprint(module, package, ldflags)
    say = progress or Progress()

    def build(target: Path) -> None:
        log = _log(name)
        go_build(module, package, target, log=log, ldflags=ldflags, progress=say, title=f"building {name}")

    return _built_once(name, fingerprint, build, say)


def has_program_from_folder(name: str, module: Path, package: str = ".", *, ldflags: str = "-s -w") -> bool:
    """Whether `program_from_folder` would return at once, without a build."""
    return _cached(name, module_fingerprint(module, package, ldflags)) is not None


def program_from_module(
    name: str,
    module: str,
    version: str,
    package: str,
    *,
    ldflags: str = "-s -w",
    progress: Progress | None = None,
) -> Path:
    """A program out of somebody's published Go module, such as sigs.k8s.io/scheduler-plugins v0.33.5.

    The module is copied and built in its own folder, because `replace` lines hold for the main module alone.
    """
    fingerprint = _module_build(module, version, package, ldflags)
    say = progress or Progress()

    def build(target: Path) -> None:
        log = _log(name)
        say.update(f"downloading {module} {version}")
        folder = copy_module(download_module(module, version, log=log), cache_folder() / "work" / name)
        go_build(folder, package, target, log=log, ldflags=ldflags, progress=say, title=f"building {name}")

    return _built_once(name, fingerprint, build, say)


def has_program_from_module(name: str, module: str, version: str, package: str, *, ldflags: str = "-s -w") -> bool:
    """Whether `program_from_module` would return at once, without a build."""
    return _cached(name, _module_build(module, version, package, ldflags)) is not None


def _module_build(module: str, version: str, package: str, ldflags: str) -> str:
    return f"{module}@{version} {package} {ldflags}"


# ---- sources


def _from_assets(name: str) -> Path | None:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    path = Path(folder) / name if folder else None
    return path.absolute() if path is not None and os.access(path, os.X_OK) else None


def _cached(name: str, fingerprint: str) -> Path | None:
    path, record = cache_folder() / "bin" / name, _record_path(name)
    if not path.exists() or not record.exists():
        return None
    known = msgspec.json.decode(record.read_bytes(), type=_CacheRecord)
    return path if known.fingerprint == fingerprint else None


def _obtain(name: str, place: str, say: Progress) -> Path:
    """Download, else build. The caller holds the lock."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    reasons = [
        f"not in KUBEBUILDER_ASSETS ({assets})" if assets else "KUBEBUILDER_ASSETS is not set",
        f"not in the cache ({cache_folder() / 'bin'})",
    ]
    sources: tuple[Callable[[Path], str], ...] = (
        lambda target: _download(name, target, say, f"downloading {place}"),
        lambda target: _build(name, target, say, f"building {place}"),
    )
    for source in sources:
        try:
            return _keep(name, _fingerprint(name), source)
        except (DownloadError, GoBuildError) as error:
            reasons.append(str(error))
    lines = "\n".join(f"  - {reason}" for reason in reasons)
    raise ProgramsUnavailable(
        f"{name} (Kubernetes {kubernetes_version()}) can be had from nowhere:\n{lines}\n"
        "Install Go and let it reach a module proxy, or point KUBEBUILDER_ASSETS at a folder that has it."
    )


def _download(name: str, target: Path, say: Progress, title: str) -> str:
    release = release_of(
        name,
        kubernetes=kubernetes_version(),
        etcd=pinned_version(_go_mod("kube"), "go.etcd.io/etcd/server/v3"),
        coredns=pinned_version(_go_mod("coredns"), "github.com/coredns/coredns"),
    )
    if release is None:
        raise DownloadError(f"no official download of {name} for this machine")
    download(release, target, say, title=title)
    return release.url


def _build(name: str, target: Path, say: Progress, title: str) -> str:
    log = _log(name)
    log.unlink(missing_ok=True)
    if name == "coredns":
        module, package, ldflags = _GO / "coredns", ".", "-s -w"
    else:
        module, package, ldflags = _kubernetes_module(log, say), f"./cmd/{name}", _kubernetes_ldflags()
    go_build(module, package, target, log=log, ldflags=ldflags, progress=say, title=title)
    return f"built from {module.name}"


def _kubernetes_module(log: Path, say: Progress) -> Path:
    """The folder of our module: as committed for the pinned version, an edited copy for any other."""
    version = kubernetes_version()
    if version == _pinned_kubernetes():
        return _GO / "kube"
    folder = cache_folder() / "work" / "kube"
    finished = folder / "tidied"
    if not finished.exists():
        say.update(f"downloading the modules of Kubernetes {version}")
        kubernetes = download_module("k8s.io/kubernetes", f"v{version}", log=log)
        copy_module(_GO / "kube", folder)
        (folder / "go.sum").unlink()
        go_mod = go_mod_for_kubernetes(_go_mod("kube"), (kubernetes / "go.mod").read_text(), version)
        (folder / "go.mod").write_text(go_mod)
        title = f"finding the libraries of Kubernetes {version}"
        run_go(["mod", "tidy"], folder, log=log, progress=say, title=title)
        finished.touch()
    return folder


def _kubernetes_ldflags() -> str:
    """With the version in it: without, kubectl takes the server for v0.0.0 and refuses it."""
    version = kubernetes_version()
    package = "k8s.io/component-base/version"
    return (
        f"-s -w -X {package}.gitVersion=v{version} -X {package}.gitMajor=1"
        f" -X {package}.gitMinor={version.split('.')[1]}"
    )


# ---- the cache


def _built_once(name: str, fingerprint: str, build: Callable[[Path], None], say: Progress) -> Path:
    def source(target: Path) -> str:
        build(target)
        return "built"

    if found := _cached(name, fingerprint):
        return found
    with _cache_lock(say):
        if found := _cached(name, fingerprint):
            return found
        try:
            return _keep(name, fingerprint, source)
        except GoBuildError as error:
            raise ProgramsUnavailable(str(error)) from error


def _keep(name: str, fingerprint: str, source: Callable[[Path], str]) -> Path:
    """Let `source` write the program, then its record: in between it counts as not there."""
    target, record = cache_folder() / "bin" / name, _record_path(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)
    origin = source(target)
    unfinished = record.with_suffix(".new")
    unfinished.write_bytes(msgspec.json.encode(_CacheRecord(fingerprint, origin)))
    unfinished.replace(record)
    return target


@contextlib.contextmanager
def _cache_lock(say: Progress) -> Iterator[None]:
    """Held by one process at a time, and released by the kernel when it ends in whatever way."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        waited = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = True
                say.update(f"waiting for another run that fills {folder}")
                time.sleep(0.5)
        if waited:
            say.done("the other run is done")
        yield


def _record_path(name: str) -> Path:
    return cache_folder() / "bin" / f".{name}.json"


def _log(name: str) -> Path:
    return cache_folder() / "logs" / f"{name}.log"


def _fingerprint(name: str) -> str:
    """The same for a downloaded and for a built program: what our module asks for."""
    return module_fingerprint(_GO / ("coredns" if name == "coredns" else "kube"), kubernetes_version())


def _go_mod(module: str) -> str:
    return (_GO / module / "go.mod").read_text()


def _pinned_kubernetes() -> str:
    return pinned_version(_go_mod("kube"), "k8s.io/kubernetes")
