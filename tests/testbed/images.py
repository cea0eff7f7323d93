"""Container images without a registry: docker-archive tars written with the standard library.

An image here is one layer of a few files. Images are imported into each node's containerd under names that no
registry serves (`docker.io/local/...`), and pods use `imagePullPolicy: Never`.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAUSE = "docker.io/local/pause:1"
HOST = "docker.io/local/host:1"

_PAUSE_C = """\
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void leave(int s) { (void)s; _exit(0); }
static void reap(int s) { (void)s; while (waitpid(-1, NULL, WNOHANG) > 0); }
int main(void) { signal(SIGINT, leave); signal(SIGTERM, leave); signal(SIGCHLD, reap); for (;;) pause(); }
"""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class ImageError(Exception):
    """An image could not be made; the text names the tool and what it said."""


@dataclass(frozen=True)
class Symlink:
    """A symbolic link inside an image."""

    target: str


# What an image's path holds: text, bytes (programs are executable), a file of this machine (its mode is
# kept), a link, or None: a folder.
Content = str | bytes | Path | Symlink | None


def image(
    name: str,
    files: Mapping[str, Content],
    *,
    entrypoint: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    user: str = "",
) -> bytes:
    """A docker-archive of one image, `name:tag`, whose only layer holds `files` (absolute path -> content).

    A Path that is a folder brings everything under it. The same input gives the same bytes.
    """
    layer = _layer(files)
    digest = hashlib.sha256(layer).hexdigest()
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **(environment or {})}
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Entrypoint": list(entrypoint) or None,
            "Env": [f"{key}={value}" for key, value in env.items()],
            "User": user,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "orchestra testbed"}],
    }
    config_bytes = json.dumps(config).encode()
    config_name = hashlib.sha256(config_bytes).hexdigest() + ".json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add_file(tar, config_name, config_bytes)
        _add_file(tar, f"{digest}/layer.tar", layer)
        _add_file(tar, "manifest.json", json.dumps(manifest).encode())
    return archive.getvalue()


def host_image(name: str = HOST) -> bytes:
    """An almost empty image that borrows this machine's /usr by a read-only hostPath mount.

    Without that mount it holds nothing that can run. Nothing of the machine is copied into it.
    """
    folders = ("/usr", "/etc", "/tmp", "/root", "/proc", "/sys", "/dev", "/run", "/var")
    files: dict[str, Content] = dict.fromkeys(folders)
    files |= {f"/{link}": Symlink(f"usr/{link}") for link in ("bin", "lib", "lib64", "sbin")}
    files["/etc/passwd"] = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
    files["/etc/group"] = "root:x:0:\nnogroup:x:65534:\n"
    files["/etc/nsswitch.conf"] = "hosts: files dns\n"
    return image(name, files)


def pause_image(name: str = PAUSE) -> bytes:
    """The sandbox image: one static program that waits and reaps."""
    return image(name, {"/pause": _compile_static(_PAUSE_C)}, entrypoint=["/pause"])


def standard_images(cache: Path) -> list[Path]:
    """The tars every node needs, made once and kept in `cache`."""
    cache.mkdir(parents=True, exist_ok=True)
    # The key covers this file, so that a changed recipe is never served from the cache.
    key = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    tars = []
    for kind, make in (("pause", pause_image), ("host", host_image)):
        tar = cache / f"{kind}-{platform.machine()}-{key}.tar"
        if not tar.exists():
            partial = tar.with_name(f"{tar.name}.{os.getpid()}")
            partial.write_bytes(make())
            partial.replace(tar)
        tars.append(tar)
    return tars


def _layer(files: Mapping[str, Content]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files.items():
            _add(tar, path.lstrip("/"), content)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, path: str, content: Content) -> None:
    match content:
        case None:
            _add_entry(tar, path, tarfile.DIRTYPE, 0o1777 if path == "tmp" else 0o755)
        case Symlink(target):
            _add_entry(tar, path, tarfile.SYMTYPE, 0o777, link=target)
        case str():
            _add(tar, path, content.encode())
        case bytes():
            _add_file(tar, path, content, mode=0o755 if content.startswith((b"\x7fELF", b"#!")) else 0o644)
        case Path() if content.is_symlink():
            _add_entry(tar, path, tarfile.SYMTYPE, 0o777, link=str(content.readlink()))
        case Path() if content.is_dir():
            _add_entry(tar, path, tarfile.DIRTYPE, 0o755)
            for child in _children(content):
                _add(tar, f"{path}/{child.name}", child)
        case Path():
            _add_file(tar, path, content.read_bytes(), mode=content.stat().st_mode & 0o777)


def _children(folder: Path) -> Iterable[Path]:
    # Byte code carries time stamps and is of no use in a read-only root.
    return sorted(child for child in folder.iterdir() if child.name != "__pycache__")


def _add_entry(tar: tarfile.TarFile, path: str, kind: bytes, mode: int, link: str = "") -> None:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode, entry.linkname = kind, mode, link
    tar.addfile(entry)


def _add_file(tar: tarfile.TarFile, path: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def _compile_static(source: str) -> bytes:
    compiler = shutil.which("cc")
    if compiler is None:
        raise ImageError("no C compiler (cc) for the pause image; install gcc and libc6-dev")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program")
        command = [compiler, "-static", "-O2", "-s", "-x", "c", "-", "-o", str(program)]
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ImageError(f"{' '.join(command)} failed: {done.stderr.strip()}")
        return program.read_bytes()
