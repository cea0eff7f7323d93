"""Workspaces through a real S3 server and a plain folder: from the folder that is edited to the tree that runs."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestra.sync.apply import current
from orchestra.sync.blobs import Blobs
from orchestra.sync.errors import Changed, Damaged, Missing, NoAccess, SyncError, Unreachable
from orchestra.sync.hashing import hash_of
from orchestra.sync.pace import Patience
from orchestra.sync.remote import Remote
from orchestra.sync.snapshot import snapshot
from orchestra.sync.store import Store
from orchestra.sync.workspace import deliver, ship
from testbed.object_store import ObjectStore
from testbed.proxy import TcpProxy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    for number in range(60):
        (folder / f"p{number % 7}").mkdir(parents=True, exist_ok=True)
        (folder / f"p{number % 7}" / f"{number}.py").write_bytes(os.urandom(200 + 997 * number))
    (folder / "empty.txt").touch()
    (folder / "same.txt").write_text("x" * 5000)
    (folder / "again.txt").write_text("x" * 5000)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("p0/0.py")
    return folder


@pytest.fixture
def place(any_url: str) -> Remote:
    return Remote(any_url)


def test_a_folder_arrives_as_it_was_and_an_edit_moves_only_what_changed(
    place: Remote, folder: Path, tmp_path: Path
) -> None:
    taken, pushed = ship(folder, Store(place, tmp_path / "seen"))
    assert pushed.blobs == 63  # 64 files, two of them the same
    blobs, root = Blobs(tmp_path / "blobs"), tmp_path / "root"
    applied = deliver(Store(place), taken.id, blobs, root)
    assert snapshot(applied.tree).id == taken.id == snapshot(folder).id
    assert ship(folder, Store(place))[1].sent == 0
    (folder / "p3" / "3.py").write_text("edited\n")
    edited, pushed = ship(folder, Store(place))  # a client that remembers nothing
    assert pushed.blobs == 1
    assert pushed.sent < 1000
    deliver(Store(place), edited.id, blobs, root)
    assert (root / "current" / "p3" / "3.py").read_text() == "edited\n"
    assert snapshot(applied.tree).id == taken.id


def test_two_clients_push_the_same_at_once(place: Remote, folder: Path, tmp_path: Path) -> None:
    taken = snapshot(folder)
    failures: list[BaseException] = []

    def push() -> None:
        try:
            Store(place).push(taken)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    deliver(Store(place), taken.id, Blobs(tmp_path / "blobs"), tmp_path / "root")


def test_what_somebody_changed_in_the_store_is_found_out(place: Remote, folder: Path, tmp_path: Path) -> None:
    taken, _ = ship(folder, Store(place))
    pack = place.listing("packs")[0]
    good = place.get(pack.key)
    for bad in (good[:5000] + bytes([good[5000] ^ 1]) + good[5001:], good[:-100], b""):
        place.put(pack.key, lambda bad=bad: [bad], len(bad))  # type: ignore[misc]
        with pytest.raises((Damaged, Missing)):
            deliver(Store(place), taken.id, Blobs(tmp_path / "blobs"), tmp_path / "root")
        assert current(tmp_path / "root") is None
    place.delete([pack.key])
    with pytest.raises(Missing):
        deliver(Store(place), taken.id, Blobs(tmp_path / "blobs"), tmp_path / "root")
    place.put(f"snapshots/{taken.id}", lambda: [b"rubbish"], 7)
    with pytest.raises(Damaged, match="is damaged"):
        Store(place).manifest(taken.id)


def test_a_pack_that_somebody_sends_is_checked_before_it_is_kept(place: Remote, folder: Path) -> None:
    ship(folder, Store(place))
    good = place.get(place.listing("packs")[0].key)
    store = Store(place)
    with pytest.raises(Damaged):
        store.put_pack("0" * 64, good, 1 << 20)
    lying = good[:300] + bytes([good[300] ^ 1]) + good[301:]
    with pytest.raises(Damaged):
        store.put_pack(hash_of(lying), lying, 1 << 20)
    store.put_pack(hash_of(good), good, 1 << 20)
    assert len(place.listing("packs")) == 1


def test_the_manifest_comes_last(place: Remote, folder: Path) -> None:
    taken = snapshot(folder)
    (folder / "p6" / "6.py").write_text("changed after the snapshot")
    store = Store(place)
    with pytest.raises(Changed):
        store.push(taken)
    assert not store.has(taken.id)
    with pytest.raises(Missing, match="blobs of snapshot"):
        store.put_snapshot(taken.manifest, {})
    with pytest.raises(Missing):
        store.manifest(taken.id)


def test_many_small_edits_do_not_end_in_many_packs(place: Remote, folder: Path, tmp_path: Path) -> None:
    store = Store(place, tmp_path / "seen")
    for number in range(40):
        (folder / "p0" / f"{number % 60}.txt").write_text(f"edit {number}\n")
        taken, _ = ship(folder, store)
    _, used = Store(place)._stored(taken.id)
    assert len(used) <= 33
    deliver(Store(place), taken.id, Blobs(tmp_path / "blobs"), tmp_path / "root")


def test_wrong_credentials_are_told_without_them(s3: ObjectStore, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-wrong-secret")
    wrong = Remote(url)
    for call in (lambda: wrong.get("x"), lambda: wrong.listing("x"), lambda: wrong.put_new("x", b"")):
        with pytest.raises(NoAccess) as told:
            call()
        assert url in str(told.value)
        assert "check the credentials" in str(told.value)
        assert "wrong-secret" not in str(told.value)
        assert s3.access_key not in str(told.value)


def test_a_missing_bucket_is_told(s3: ObjectStore) -> None:
    gone = Remote("s3://no-such-bucket/x")
    for call in (lambda: gone.get("x"), lambda: gone.listing("x"), lambda: gone.put_new("x", b"")):
        with pytest.raises(Missing, match="no such bucket"):
            call()
    assert s3.port


def test_urls_of_another_kind_are_refused_and_signatures_never_shown() -> None:
    with pytest.raises(SyncError, match=r"ftp://host/x: the URL must begin with file://, s3://, gs://, az://"):
        Remote("ftp://me:secret@host/x?sig=secret")


def test_a_server_that_drops_connections_is_tried_again(
    s3: ObjectStore, url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TcpProxy(s3.address) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        stop = threading.Event()

        def disturb() -> None:
            while not stop.wait(0.05):
                proxy.reset_connections()

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            for number in range(5):
                (folder / "more.txt").write_text(str(number))
                taken, _ = ship(folder, Store(Remote(url, patience=Patience(seconds=60, tries=50))))
            deliver(Store(Remote(url)), taken.id, Blobs(tmp_path / "blobs"), tmp_path / "root")
        finally:
            stop.set()
            thread.join()
        proxy.freeze()
        threading.Timer(1.0, proxy.thaw).start()
        assert Store(Remote(url)).has(taken.id)
        proxy.refuse()
        began = time.monotonic()
        with pytest.raises(Unreachable, match="did not answer"):
            Store(Remote(url, patience=Patience(seconds=1))).has(taken.id)
        assert time.monotonic() - began < 15


_FORKING = """
import os, sys
from orchestra.sync.errors import SyncError
from orchestra.sync.remote import Remote
remote = Remote(sys.argv[1])
remote.put_new("x", b"1")
child = os.fork()
if child == 0:
    try:
        remote.get("x")
    except SyncError:
        os._exit(0)
    os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_is_refused_instead_of_hanging(url: str) -> None:
    assert (
        subprocess.run([sys.executable, "-W", "ignore", "-c", _FORKING, url], timeout=60, check=False).returncode == 0
    )


def test_the_library_is_loaded_only_when_it_is_used() -> None:
    rooms = "apply, blobs, chain, outputs, packs, remote, restore, snapshot, store, transfer, workspace"
    program = f"from orchestra.sync import {rooms}; import sys; print({{'obstore', 'blake3', 'zstandard'}} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "set()"
