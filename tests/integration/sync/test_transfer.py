"""Plain trees through a real S3 server, and through one that misbehaves."""

import http.server
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestra.api.problem import Invalid
from orchestra.sync.errors import Changed, Missing, NoAccess, Unreachable
from orchestra.sync.landing import fetch
from orchestra.sync.outputs import Holder, Outputs
from orchestra.sync.pace import Patience
from orchestra.sync.remote import Remote, located
from orchestra.sync.transfer import MARKER, Moving, down, up
from testbed.object_store import ObjectStore
from testbed.proxy import TcpProxy
from testbed.refusing_proxy import RefusingProxy


@pytest.fixture
def place(any_url: str) -> Remote:
    return Remote(any_url, patience=Patience(seconds=10))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    (folder / "tensorboard").mkdir(parents=True)
    (folder / "log.txt").write_text("line 1\n")
    (folder / "current_ckpt.pt").write_bytes(os.urandom(40 << 20))
    (folder / "checkpoint_1.pt").write_bytes(os.urandom(100_000))
    (folder / "tensorboard" / "events.out.tfevents.1").write_bytes(b"e")
    (folder / "a b+ü%.txt").write_text("odd name")
    (folder / "empty").touch()
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_tree_goes_up_and_comes_down_with_progress(place: Remote, folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    moved = up(folder, place, "out", progress=lambda now: seen.append((now.files_done, now.bytes_done)))
    assert (moved.files, moved.unchanged, moved.abandoned) == (6, 0, ())
    assert seen[-1] == (6, moved.bytes)
    assert up(folder, place, "out").files == 0
    told: list[Moving] = []
    got = down(place, "out", tmp_path / "new", progress=told.append)
    assert (got.files, got.bytes, got.newer) == (6, moved.bytes, ())
    assert (told[-1].files_done, told[-1].bytes_done) == (told[-1].files, told[-1].bytes) == (6, moved.bytes)
    assert files(tmp_path / "new") == files(folder)
    (folder / "log.txt").write_text("line 2\n")  # the same size
    assert up(folder, place, "out").files == 1
    down(place, "out", tmp_path / "new")  # perhaps within the second in which the object was written before
    assert (tmp_path / "new" / "log.txt").read_text() == "line 2\n"
    time.sleep(3.1)
    down(place, "out", tmp_path / "new")
    assert down(place, "out", tmp_path / "new").files == 0


def test_only_complete_files_go_up(place: Remote, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in (
        "model.pt.tmp",
        "tmp-step-1/state.pt",
        "x.part",
        "dcp/__0_0.distcp",
        "done/__0_0.distcp",
        "done/.metadata",
    ):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("x")
    (out / "fresh.pt").write_text("x")
    (out / "train.log").write_text("one\n")
    moved = up(out, place, quiet=20, growing=("*.log",))
    keys = {item.key for item in place.listing()}
    assert keys == {"done/__0_0.distcp", "done/.metadata", "train.log", MARKER}
    assert moved.abandoned == ("dcp/__0_0.distcp", "fresh.pt")
    with (out / "train.log").open("a") as log:
        log.write("two\n")
    up(out, place, quiet=20, growing=("*.log",))
    assert place.get("train.log") == b"one\ntwo\n"
    up(out, place)  # the writers are gone
    assert "fresh.pt" in {item.key for item in place.listing()}
    assert "dcp/__0_0.distcp" not in {item.key for item in place.listing()}, "it has no .metadata and never will"


def test_an_upload_that_was_cut_short_still_comes_down_whole(place: Remote, folder: Path, tmp_path: Path) -> None:
    up(folder, place, "out")
    place.put("out/log.txt", lambda: [b"written, and then the machine died"], 34)
    got = down(place, "out", tmp_path / "new")
    assert got.newer == ("log.txt",)
    assert (tmp_path / "new" / "log.txt").read_text() == "written, and then the machine died"


def test_an_object_that_changes_while_it_is_read_is_not_mixed(remote: Remote, tmp_path: Path) -> None:
    one, other = bytes(20 << 20), os.urandom(20 << 20)
    remote.put("x", lambda: [one], len(one))
    before = remote.look("x")
    assert before is not None
    remote.put("x", lambda: [other], len(other))
    root = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(Changed, match="changed by somebody"):
        fetch(remote, "x", len(one), root, "x", etag=before.etag)
    os.close(root)
    assert list(tmp_path.iterdir()) == []


def test_nothing_there_is_an_error_and_not_an_empty_folder(remote: Remote, tmp_path: Path) -> None:
    with pytest.raises(Missing, match="there is nothing at"):
        down(remote, "data", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_url_of_a_single_object_is_one_file(remote: Remote, url: str, tmp_path: Path) -> None:
    remote.put_new("data/train.bin", b"tokens")
    for at in (f"{url}/data/train.bin", f"{url}/data/", f"{url}/data"):
        into = tmp_path / at.rstrip("/").rpartition("/")[2]
        assert down(*located(at, create=False), into).files == 1
        assert files(into) == {"train.bin": b"tokens"}
    with pytest.raises(Missing):
        down(*located(f"{url}/data/train"), tmp_path / "new")


def test_keys_that_cannot_be_files_refuse_the_whole_transfer(remote: Remote, tmp_path: Path) -> None:
    for key in ("d/README", "d/readme", "d/ok"):
        remote.put_new(key, b"x")
    with pytest.raises(Invalid, match="the same name as"):
        down(remote, "d", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_link_in_the_target_is_never_followed(remote: Remote, tmp_path: Path) -> None:
    remote.put_new("d/sub/file", b"x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(Exception, match=r"cannot be written|directory"):
        down(remote, "d", tmp_path / "new")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_download_survives_lost_connections(
    s3: ObjectStore, url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(folder, Remote(url), "out")
    with TcpProxy(s3.address) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        stop = threading.Event()

        def disturb() -> None:
            while not stop.wait(0.1):
                proxy.reset_connections()

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            down(Remote(url, patience=Patience(seconds=60, tries=100, longest_wait=0.5)), "out", tmp_path / "new")
        finally:
            stop.set()
            thread.join()
    assert files(tmp_path / "new") == files(folder)


class _Sulking(http.server.BaseHTTPRequestHandler):
    """Answers 503 SlowDown while `refusals` last, then serves a few bytes."""

    protocol_version = "HTTP/1.1"
    refusals = 0
    asked = 0
    at_once = 0
    most_at_once = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        kind = type(self)
        with kind.lock:
            kind.asked += 1
            kind.at_once += 1
            kind.most_at_once = max(kind.most_at_once, kind.at_once)
            refuse = kind.refusals > 0
            kind.refusals -= refuse
        body = b"<Error><Code>SlowDown</Code></Error>" if refuse else b"hello"
        self.send_response(503 if refuse else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("ETag", '"1"')
        self.end_headers()
        time.sleep(0.01)
        with kind.lock:
            kind.at_once -= 1
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def sulking(refusals: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Sulking]]:
    kind = type("Kind", (_Sulking,), {"refusals": refusals})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    try:
        yield kind
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_server_that_says_slow_down_gets_fewer_requests_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with sulking(40, monkeypatch) as kind:
        remote = Remote(url, patience=Patience(first_wait=0.05, longest_wait=0.3))
        assert remote.pace.limit == 32
        assert remote.each(lambda n: remote.get(f"k{n}"), range(60)) == [b"hello"] * 60
        assert kind.asked == 100
        assert remote.pace.limit < 32


def test_a_server_that_only_says_slow_down_is_given_up_with_its_answer(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sulking(10_000, monkeypatch) as kind:
        remote = Remote(url, patience=Patience(tries=4, first_wait=0.01))
        with pytest.raises(Unreachable, match="the server answered 503 SlowDown"):
            remote.get("k")
        assert kind.asked == 4


def test_a_real_server_that_refuses_a_third_of_all_requests_loses_nothing(
    s3: ObjectStore, url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        (folder / f"{number}.bin").write_bytes(os.urandom(1000 + number))
    seed = random.randrange(1 << 30)
    print("seed", seed)
    with RefusingProxy(s3.address, 0.33, random.Random(seed)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        remote = Remote(url, patience=Patience(seconds=600, tries=200, first_wait=0.02, longest_wait=0.3))
        up(folder, remote, "out")
        assert up(folder, remote, "out").files == 0
        down(remote, "out", tmp_path / "new")
        mine = Outputs(remote)
        fence = mine.take_fence(Holder("job", "uid", 1))
        mine.publish(folder, ["checkpoint_1.pt", "current_ckpt.pt"], 7, fence)
        assert mine.resume(tmp_path / "resumed") is not None
        assert proxy.refusals > 20, proxy.served
    assert files(tmp_path / "new") == files(folder)
    assert (tmp_path / "resumed" / "current_ckpt.pt").read_bytes() == (folder / "current_ckpt.pt").read_bytes()


def test_a_server_that_is_slow_and_stands_still_now_and_then_loses_nothing(
    s3: ObjectStore, url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TcpProxy(s3.address) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        stop = threading.Event()

        def disturb() -> None:
            while not stop.wait(0.05):
                proxy.freeze()
                stop.wait(0.2)
                proxy.thaw()

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            up(folder, Remote(url, patience=Patience(seconds=300)), "out")
            down(Remote(url, patience=Patience(seconds=300)), "out", tmp_path / "new")
        finally:
            stop.set()
            thread.join()
    assert files(tmp_path / "new") == files(folder)


def test_missing_credentials_are_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises((NoAccess, Unreachable)) as told:
        Remote(url, patience=Patience(seconds=1, tries=2)).get("x")
    assert isinstance(told.value, NoAccess), str(told.value)
