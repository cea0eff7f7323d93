"""One real server of each kind for all tests of this folder; each test has a prefix of its own."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.sync.store_process import StoreProcess, default_account
from orchestra.sync.pace import Patience
from orchestra.sync.remote import Remote
from testbed.azurite import Azurite, running
from testbed.control_plane import ControlPlane
from testbed.object_store import ObjectStore

KINDS = ["s3", "file", pytest.param("az", marks=pytest.mark.azurite)]
"""For tests that hold for each kind of store that we claim."""


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    with ObjectStore() as server:
        yield server


@pytest.fixture
def s3(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The server, with our environment pointing to it and to nothing else."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    return object_store


@pytest.fixture
def url(s3: ObjectStore) -> str:
    return s3.url(f"tests/{uuid.uuid4()}")


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    with running() as server:
        yield server


@pytest.fixture(params=KINDS)
def any_url(request: pytest.FixtureRequest, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place in a store of each kind."""
    if request.param == "file":
        return (tmp_path / "plain store").as_uri()
    if request.param == "s3":
        return url
    server: Azurite = request.getfixturevalue("azurite")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return server.url(f"tests/{uuid.uuid4()}")


@pytest.fixture
def remote(url: str) -> Remote:
    return Remote(url, patience=Patience(seconds=15))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def store(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[StoreProcess]:
    default_account(control_plane, namespace)
    folder = tmp_path / "store"
    folder.mkdir()
    made = StoreProcess(control_plane, namespace, folder)
    yield made
    made.kill()


@pytest.fixture
def other(control_plane: ControlPlane) -> Iterator[str]:
    with control_plane.namespace("other-") as name:
        default_account(control_plane, name)
        yield name
