"""A release is taken only when its published sum says it is the one."""

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import release_download
from testbed.progress import Progress
from testbed.release_download import DownloadError, Release, download, release_of

PROGRAM = b"#!/bin/sh\necho hello\n"


class Site:
    """Files by path, served on loopback."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = site.files.get(self.path)
                self.send_response(200 if body is not None else 404)
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,)).start()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(release_download, "_unreachable", {})
    site = Site()
    yield site
    site.server.shutdown()
    site.server.server_close()


@pytest.fixture
def progress() -> Progress:
    return Progress(io.StringIO())


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def test_a_program_with_the_right_sum_is_put_into_place(site: Site, progress: Progress, tmp_path: Path) -> None:
    site.files = {"/kubectl": PROGRAM, "/kubectl.sha256": sha256(PROGRAM)}
    release = Release(f"{site.url}/kubectl", f"{site.url}/kubectl.sha256")
    download(release, tmp_path / "kubectl", progress, title="downloading kubectl")
    assert (tmp_path / "kubectl").read_bytes() == PROGRAM
    assert (tmp_path / "kubectl").stat().st_mode & 0o111
    assert [path.name for path in tmp_path.iterdir()] == ["kubectl"]


def test_a_program_is_taken_out_of_its_archive(site: Site, progress: Progress, tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo("etcd-v3/etcd")
        member.size = len(PROGRAM)
        tar.addfile(member, io.BytesIO(PROGRAM))
    data = archive.getvalue()
    sums = sha256(b"other") + b"  other.tar.gz\n" + sha256(data) + b"  etcd.tar.gz\n"
    site.files = {"/etcd.tar.gz": data, "/SHA256SUMS": sums}
    release = Release(f"{site.url}/etcd.tar.gz", f"{site.url}/SHA256SUMS", "etcd-v3/etcd")
    download(release, tmp_path / "etcd", progress, title="downloading etcd")
    assert (tmp_path / "etcd").read_bytes() == PROGRAM


def test_a_program_with_a_wrong_sum_leaves_nothing(site: Site, progress: Progress, tmp_path: Path) -> None:
    site.files = {"/kubectl": PROGRAM + b"evil", "/kubectl.sha256": sha256(PROGRAM)}
    release = Release(f"{site.url}/kubectl", f"{site.url}/kubectl.sha256")
    with pytest.raises(DownloadError, match="has the sum"):
        download(release, tmp_path / "kubectl", progress, title="downloading kubectl")
    assert list(tmp_path.iterdir()) == []


def test_a_release_that_is_not_there_is_an_error_with_its_address(
    site: Site, progress: Progress, tmp_path: Path
) -> None:
    release = Release(f"{site.url}/kubectl", f"{site.url}/kubectl.sha256")
    with pytest.raises(DownloadError, match=r"/kubectl\.sha256: .*404"):
        download(release, tmp_path / "kubectl", progress, title="downloading kubectl")


def test_a_host_that_cannot_be_reached_is_asked_once(site: Site, progress: Progress, tmp_path: Path) -> None:
    site.server.shutdown()
    site.server.server_close()
    release = Release(f"{site.url}/kubectl", f"{site.url}/kubectl.sha256")
    with pytest.raises(DownloadError, match="refused"):
        download(release, tmp_path / "kubectl", progress, title="downloading kubectl")
    with pytest.raises(DownloadError, match="cannot be reached"):
        download(release, tmp_path / "kubectl", progress, title="downloading kubectl")


def test_each_program_is_looked_for_where_it_is_published() -> None:
    versions = {"kubernetes": "1.35.8", "etcd": "3.6.5", "coredns": "1.15.0"}
    kubelet = release_of("kubelet", **versions)
    etcd = release_of("etcd", **versions)
    assert kubelet is not None
    assert etcd is not None
    assert "/v1.35.8/bin/linux/" in kubelet.url
    assert "/v3.6.5/" in etcd.url
    assert release_of("our-own-program", **versions) is None
