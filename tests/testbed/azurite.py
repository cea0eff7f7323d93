"""Azure's blob storage on loopback: Azurite, Microsoft's own emulator, from npm (fetched once, kept in the cache).

`ORCHESTRA_AZURITE` names another program `azurite-blob`.
"""

import base64
import contextlib
import datetime
import hashlib
import hmac
import http.client
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.ports import free_port
from testbed.processes import Processes
from testbed.programs import cache_folder
from testbed.progress import Progress
from testbed.temporary_folder import TemporaryFolder
from testbed.tiers import Tier, TierUnavailable, register_tier
from testbed.waiting import wait_until

PROGRAM = "ORCHESTRA_AZURITE"
_PACKAGE = "azurite@3.37.0"
_ACCOUNT = "devstoreaccount1"
# The emulator's account and key are published with it and open nothing else.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_NAME = "azurite"


class Azurite:
    """The running emulator, with one container."""

    def __init__(self, port: int, container: str) -> None:
        self.port, self.container = port, container

    def url(self, path: str = "") -> str:
        """The URL of something in the container."""
        return f"az://{self.container}/{path}"

    def environment(self, *, key: str | None = None) -> dict[str, str]:
        """What a client needs to reach it."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": key or _KEY,
            "AZURE_ENDPOINT": f"http://127.0.0.1:{self.port}/{_ACCOUNT}",
        }

    def make_container(self) -> bool:
        """Create the container, signed by hand: no client of ours creates one. Whether the server answered."""
        now = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        ours = {"x-ms-date": now, "x-ms-version": "2021-08-06"}
        lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in ours.items())]
        signed = "\n".join([*lines, f"/{_ACCOUNT}/{_ACCOUNT}/{self.container}", "restype:container"])
        digest = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
        told = {"Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}", "Content-Length": "0"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("PUT", f"/{_ACCOUNT}/{self.container}?restype=container", headers=ours | told)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if status not in (201, 409):
            raise RuntimeError(f"Azurite does not make a container: {status}")
        return True


def program(progress: Progress | None = None) -> Path:
    """The program; TierUnavailable where it can be had from nowhere."""
    given = os.environ.get(PROGRAM)
    if given:
        return Path(given)
    folder = cache_folder() / _PACKAGE.replace("@", "-")
    found = folder / "node_modules" / ".bin" / "azurite-blob"
    if not found.exists():
        if progress is not None:
            progress.update(f"fetching {_PACKAGE} from npm (a minute, once)")
        _fetch(folder)
    return found


def _fetch(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise TierUnavailable(f"node and npm are not installed here; or set {PROGRAM} to an azurite-blob")
    work = folder.with_name(f"{folder.name}.{os.getpid()}.work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        words = [npm, "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(work), _PACKAGE]
        done = subprocess.run(words, cwd=work, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            raise TierUnavailable(f"npm cannot fetch {_PACKAGE}: {last}")
        with contextlib.suppress(OSError):  # somebody else was quicker
            work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def running(container: str = "training") -> Iterator[Azurite]:
    """One server, gone at the end."""
    folder = TemporaryFolder("orchestra-azurite-")
    processes = Processes(folder.path)
    made = Azurite(free_port(), container)
    words = [program(), "--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry",
             "--blobHost", "127.0.0.1", "--blobPort", made.port]  # fmt: skip
    try:
        processes.start(_NAME, [str(word) for word in words], die_with_parent=True, cwd=folder.path)
        wait_until("Azurite answers", made.make_container, timeout=300)
        yield made
    finally:
        processes.stop_all(timeout=0)
        folder.remove()


def pytest_configure(config: pytest.Config) -> None:
    """An optional tier."""
    register_tier(config, Tier("Azurite", "azurite", (), _prepare, required_in_ci=False))
    config.addinivalue_line("markers", "azurite: needs Azurite, which npm brings")


def _prepare(progress: Progress) -> None:
    os.environ[PROGRAM] = str(program(progress))  # tests give themselves other caches: it is fetched once for all
