"""Official releases: downloaded, checked against their published sums, put into place whole or not at all."""

import hashlib
import http.client
import io
import platform
import re
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from testbed.progress import Progress

_TIMEOUT_S = 5.0
"""For the connection and for each piece that is read, not for the whole: without internet we want to know at
once.
"""
_CHUNK = 1 << 20
_unreachable: dict[str, str] = {}


class DownloadError(Exception):
    """A release could not be had, or was not what its sum promises."""


@dataclass(frozen=True)
class Release:
    """Where a program is published. `member` is its name inside an archive, None where the file is the
    program.
    """

    url: str
    sums_url: str
    member: str | None = None


def release_of(name: str, *, kubernetes: str, etcd: str, coredns: str) -> Release | None:
    """The official release of a program for this machine, or None where nobody publishes one."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
    if platform.system() != "Linux" or machine is None:
        return None
    if name == "etcd":
        folder = f"https://github.com/etcd-io/etcd/releases/download/v{etcd}"
        archive = f"etcd-v{etcd}-linux-{machine}"
        return Release(f"{folder}/{archive}.tar.gz", f"{folder}/SHA256SUMS", f"{archive}/etcd")
    if name == "coredns":
        folder = f"https://github.com/coredns/coredns/releases/download/v{coredns}"
        url = f"{folder}/coredns_{coredns}_linux_{machine}.tgz"
        return Release(url, f"{url}.sha256", "coredns")
    if name.startswith("kube"):
        url = f"https://dl.k8s.io/v{kubernetes}/bin/linux/{machine}/{name}"
        return Release(url, f"{url}.sha256")
    return None


def download(release: Release, target: Path, progress: Progress, *, title: str) -> None:
    """Download a program to `target`; DownloadError at once where there is no internet."""
    expected = _published_sum(release)
    unfinished = target.with_name(f".{target.name}.download")
    try:
        with _open(release.url) as response, unfinished.open("wb") as file:
            digest = hashlib.sha256()
            while piece := response.read(_CHUNK):
                progress.update(title)
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != expected:
            raise DownloadError(f"{release.url} has the sum {digest.hexdigest()}, published is {expected}")
        if release.member is not None:
            _extract(unfinished, release.member)
        unfinished.chmod(0o755)
        unfinished.replace(target)
    except (OSError, http.client.HTTPException, tarfile.TarError, KeyError) as error:
        raise DownloadError(f"{release.url}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    progress.done(f"{title}: done")


def _published_sum(release: Release) -> str:
    try:
        with _open(release.sums_url) as response:
            text = response.read(_CHUNK).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"{release.sums_url}: {error}") from error
    file_name = release.url.rpartition("/")[2]
    for line in text.splitlines():
        found = re.match(r"([0-9a-f]{64})(?:\s+\*?(\S+))?\s*$", line)
        # A list of sums names its files, perhaps with their folder; a lone sum does not.
        if found and (found[2] is None or found[2].rpartition("/")[2] == file_name):
            return found[1]
    raise DownloadError(f"{release.sums_url} has no SHA-256 sum of {file_name}")


def _extract(archive: Path, member: str) -> None:
    """Replace a downloaded archive with one file out of it."""
    with tarfile.open(archive) as tar:
        source: IO[bytes] = tar.extractfile(member) or io.BytesIO()
        data = source.read()
    archive.write_bytes(data)


def _open(url: str) -> http.client.HTTPResponse:
    """Ask for an address. A host that cannot be reached is not tried again by this process."""
    host = urllib.parse.urlsplit(url).netloc
    if host in _unreachable:
        raise OSError(_unreachable[host])
    try:
        # The addresses are ours, not a user's; http is for the tests' own server.
        response: http.client.HTTPResponse = urllib.request.urlopen(url, timeout=_TIMEOUT_S)  # noqa: S310
        return response
    except urllib.error.HTTPError as error:
        error.close()
        raise
    except OSError as error:
        _unreachable[host] = f"{host} cannot be reached ({error})"
        raise
