"""An etcd that still speaks the protocol of torchrun's `etcd-v2`: 3.4 or 3.5, which Kubernetes no longer uses.

Debian's package is fetched and unpacked (nothing is installed); `ORCHESTRA_ETCD_V2` names another program.
"""

import contextlib
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.images import Content, image
from testbed.ports import free_port
from testbed.programs import cache_folder
from testbed.progress import Progress
from testbed.tiers import Tier, TierUnavailable, register_tier
from testbed.waiting import wait_until

PROGRAM = "ORCHESTRA_ETCD_V2"
IMAGE = "docker.io/local/etcd:3"


def program() -> Path:
    """The program; TierUnavailable where it can be had from nowhere."""
    given = os.environ.get(PROGRAM)
    if given:
        return Path(given)
    kept = cache_folder() / "bin" / "etcd-v2"
    if not kept.exists():
        _fetch(kept)
    return kept


def archive() -> bytes:
    """An image with it, and with the libraries it wants."""
    path = program()
    files: dict[str, Content] = {"/usr/bin/etcd": path, "/tmp": None, "/var/run": None}
    listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    for word in listed.split():
        if word.startswith("/"):
            files[word] = Path(word).resolve()
    return image(IMAGE, files)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    """One server; its `host:port`."""
    client, peer = free_port(), free_port()
    url = f"http://127.0.0.1:{client}"
    words = [str(program()), "--enable-v2", f"--data-dir={folder}", f"--listen-client-urls={url}"]
    words += [f"--advertise-client-urls={url}", f"--listen-peer-urls=http://127.0.0.1:{peer}"]
    words += [f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}"]
    words += [f"--initial-cluster=default=http://127.0.0.1:{peer}"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until("etcd answers", lambda: _answers(f"{url}/v2/keys"))
        yield f"127.0.0.1:{client}"
    finally:
        process.kill()
        process.wait()


def pytest_configure(config: pytest.Config) -> None:
    """An optional tier."""
    register_tier(config, Tier("etcd with the v2 protocol", "etcd_v2", (), _prepare, required_in_ci=False))
    config.addinivalue_line("markers", "etcd_v2: needs an etcd 3.4 or 3.5")


def _prepare(_progress: Progress) -> None:
    program()


def _fetch(target: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise TierUnavailable(f"no Debian package tools here; set {PROGRAM} to an etcd 3.4 or 3.5")
    work = target.with_name("etcd-v2.work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        got = subprocess.run(["apt-get", "download", "etcd-server"], cwd=work, capture_output=True, check=False)
        packages = list(work.glob("*.deb"))
        if got.returncode != 0 or not packages:
            raise TierUnavailable(f"Debian's etcd-server cannot be fetched; set {PROGRAM} to an etcd 3.4 or 3.5")
        subprocess.run(["dpkg-deb", "-x", packages[0], work], check=True, capture_output=True)
        (work / "usr" / "bin" / "etcd").replace(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 -- our own server
            return True
    except (urllib.error.URLError, OSError):
        return False
