"""An etcd for a job that meets by `etcd-v2` and names none: the one on the PATH, for as long as an attempt lasts."""

from __future__ import annotations

import contextlib
import functools
import http.client
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from orchestra.agent.processes import die_with_parent

_HOST = "127.0.0.1"
_VERSION = re.compile(r"etcd Version: (\d+)\.(\d+)")
_LAST = (3, 5)  # later ones do not speak the old protocol
_PATIENCE = 60.0


class EtcdFailed(Exception):
    """It did not come up."""


def usable(path: str | None = None) -> tuple[str | None, str]:
    """The program on the PATH, if it still speaks the protocol of `etcd-v2`; else None, and why not."""
    program = shutil.which("etcd", path=path)
    if program is None:
        return None, "there is no etcd on the PATH"
    version = _version(program)
    if version is None:
        return None, f"{program} does not tell its version"
    if version > _LAST:
        return None, f"{program} is {version[0]}.{version[1]}, and only etcd up to 3.5 speaks that protocol"
    return program, ""


@functools.cache
def _version(program: str) -> tuple[int, int] | None:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said)
    return (int(found[1]), int(found[2])) if found else None


@contextlib.contextmanager
def running(program: str | None, endpoint: str, folder: Path) -> Iterator[None]:
    """It answers at the endpoint, and ends with the block, or with this process. Without a program: nothing.

    EtcdFailed when it does not come up.
    """
    if program is None:
        yield
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    own, peer = f"http://{endpoint}", f"http://{_HOST}:{_free_port()}"
    words = [program, "--enable-v2", f"--data-dir={folder / 'data'}"]
    words += [f"--listen-client-urls={own}", f"--advertise-client-urls={own}", f"--listen-peer-urls={peer}"]
    words += [f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"]
    log = folder / "etcd.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, signal.SIGKILL),
        )
    try:
        end = time.monotonic() + _PATIENCE
        while not _answers(endpoint):
            if process.poll() is not None or time.monotonic() > end:
                raise EtcdFailed(f"{program} did not come up; see {log}")
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((_HOST, 0))
        return int(one.getsockname()[1])


def _answers(endpoint: str) -> bool:
    connection = http.client.HTTPConnection(endpoint, timeout=2)
    try:
        connection.request("GET", "/v2/keys")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
