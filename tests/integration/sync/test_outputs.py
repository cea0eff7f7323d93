"""Checkpoints through a real S3 server: complete or not there, whoever is killed."""

import contextlib
import importlib.util
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from orchestra.sync.errors import Changed, Damaged, NoRoom, SyncError, Taken
from orchestra.sync.hashing import hash_of
from orchestra.sync.outputs import Fence, Holder, Name, Outputs
from orchestra.sync.pace import Patience
from orchestra.sync.remote import Remote
from testbed.object_store import ObjectStore

sys.path.insert(0, str(Path(__file__).parent))

HERE = Path(__file__).parent


@pytest.fixture
def outputs(any_url: str) -> Outputs:
    return Outputs(Remote(any_url, patience=Patience(seconds=5)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def fence(outputs: Outputs, resumed: Name | None = None) -> Fence:
    return outputs.take_fence(Holder("job", "uid-1", 1, resumed_from=str(resumed) if resumed else None))


def save(folder: Path, step: int, **files: bytes) -> list[str]:
    paths = []
    for name, content in files.items():
        path = folder / f"step-{step:08}" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        paths.append(path.relative_to(folder).as_posix())
    return paths


def test_a_checkpoint_goes_up_and_comes_down_on_another_machine(outputs: Outputs, folder: Path, tmp_path: Path) -> None:
    assert outputs.resume(tmp_path / "new") is None
    mine = fence(outputs)
    large = os.urandom(20 << 20)
    first = outputs.publish(folder, save(folder, 1, model=large, state=b"1", empty=b""), 1, mine)
    assert (str(first.name), first.files, first.sent) == ("1-1", 3, len(large) + 1)
    second = outputs.publish(folder, save(folder, 2, model=large, state=b"2"), 2, mine)
    assert second.sent == 1, "what is there is not sent again"
    resumed = outputs.resume(tmp_path / "new")
    assert resumed is not None
    assert (str(resumed.name), resumed.passed_over) == ("1-2", ())
    assert (tmp_path / "new" / "step-00000002" / "model").read_bytes() == large
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["step-00000002"], "nothing else, nothing partial"


def test_a_broken_checkpoint_is_passed_over_and_it_is_said(outputs: Outputs, folder: Path, tmp_path: Path) -> None:
    mine = fence(outputs)
    for step, content in ((1, b"one"), (2, b"two"), (3, b"three"), (4, b"four!")):
        outputs.publish(folder, save(folder, step, model=content), step, mine)
    outputs.remote.put(f"data/{hash_of(b'four!')}", lambda: [b"other"], 5)
    outputs.remote.put(f"data/{hash_of(b'three')}", lambda: [b"th"], 2)
    outputs.remote.delete([f"data/{hash_of(b'two')}"])
    resumed = outputs.resume(tmp_path / "new")
    assert resumed is not None
    assert resumed.name == Name(1, 1)
    reasons = {str(name): reason for name, reason in resumed.passed_over}
    assert "hash is another" in reasons["1-4"]
    assert "has 2 bytes instead of 5" in reasons["1-3"]
    assert "is not there" in reasons["1-2"]
    assert (tmp_path / "new" / "step-00000001" / "model").read_bytes() == b"one"
    assert not (tmp_path / "new" / "step-00000004").exists()
    outputs.remote.delete([f"data/{hash_of(b'one')}"])
    with pytest.raises(Damaged, match=r"no checkpoint .* is whole"):
        outputs.resume(tmp_path / "newer")


def test_a_late_writer_is_not_in_the_chain(outputs: Outputs, folder: Path) -> None:
    old = fence(outputs)
    outputs.publish(folder, save(folder, 10, model=b"10"), 10, old)
    new = fence(outputs, Name(1, 10))
    outputs.publish(folder, save(folder, 20, model=b"late"), 20, old)
    assert outputs.names() == [Name(1, 10)]
    outputs.publish(folder, save(folder, 15, model=b"15"), 15, new)
    assert outputs.names() == [Name(2, 15), Name(1, 10)]
    third = fence(outputs, Name(1, 10))  # 2-15 was broken: one step back
    outputs.publish(folder, save(folder, 15, model=b"15 again"), 15, third)
    assert outputs.names() == [Name(3, 15), Name(1, 10)]
    newest = outputs.newest_fence()
    assert newest is not None
    assert (newest.n, newest.holder.job) == (3, "job")


def test_fences_are_never_shared(outputs: Outputs) -> None:
    taken: list[int] = []
    threads = [threading.Thread(target=lambda: taken.append(fence(outputs).n)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 9))


def test_a_step_is_published_once(outputs: Outputs, folder: Path) -> None:
    mine = fence(outputs)
    outputs.publish(folder, save(folder, 1, model=b"1"), 1, mine)
    outputs.publish(folder, save(folder, 1, model=b"1"), 1, mine)  # an answer got lost: the same again is fine
    with pytest.raises(Taken, match="take a new fence"):
        outputs.publish(folder, save(folder, 1, model=b"other"), 1, mine)


def test_of_several_nodes_the_manifest_waits_for_all_parts(outputs: Outputs, folder: Path, tmp_path: Path) -> None:
    mine = fence(outputs)
    files = [save(folder, 1, shard0=b"0"), save(folder, 1, shard1=b"1")]
    with pytest.raises(SyncError, match="no part from node 1"):
        outputs.publish(folder, files[0], 1, mine, node=0, nodes=2, timeout=0.1)
    assert outputs.resume(tmp_path / "new") is None
    outputs.publish(folder, files[1], 1, mine, node=1, nodes=2)
    assert outputs.resume(tmp_path / "new") is None
    outputs.publish(folder, files[0], 1, mine, node=0, nodes=2)
    resumed = outputs.resume(tmp_path / "new")
    assert resumed is not None
    assert {file.path for file in resumed.files} == {"step-00000001/shard0", "step-00000001/shard1"}


@pytest.mark.parametrize("size", [1000, 40 << 20])
def test_a_file_that_is_still_written_is_not_published(
    outputs: Outputs, folder: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = fence(outputs)
    (files,) = save(folder, 1, model=os.urandom(size))
    path = folder / files
    put = outputs.remote.put_named_by_hash

    def meanwhile(key: str, pieces: Callable[[], Iterable[bytes]], size: int) -> None:
        with path.open("r+b") as file:
            file.seek(size // 2)
            file.write(os.urandom(10))
        put(key, pieces, size)

    monkeypatch.setattr(outputs.remote, "put_named_by_hash", meanwhile)
    with pytest.raises(Changed, match="model changed"):
        outputs.publish(folder, [files], 1, mine)
    assert outputs.names() == []
    assert outputs.remote.listing("data") == [], "no content under a name that is not its hash"


def test_a_full_disk_is_told_and_the_next_try_goes_well(outputs: Outputs, folder: Path, tmp_path: Path) -> None:
    outputs.publish(folder, save(folder, 1, model=os.urandom(200_000), small=b"1"), 1, fence(outputs))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    new = tmp_path / "new"
    new.mkdir()
    (new / "old.pt").write_text("older")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with pytest.raises(NoRoom):
            outputs.resume(new)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in new.iterdir()] == ["old.pt"]
    assert outputs.resume(new) is not None


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs root, to mount a small disk")
def test_a_really_full_disk_is_told(outputs: Outputs, folder: Path, tmp_path: Path) -> None:
    outputs.publish(folder, save(folder, 1, model=os.urandom(3 << 20), small=b"1"), 1, fence(outputs))
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=False).returncode:
        pytest.skip("this machine does not let us mount")
    try:
        with pytest.raises(NoRoom, match="no room for step-00000001/model"):
            outputs.resume(disk)
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_an_earlier_try_that_was_killed_is_continued(outputs: Outputs, folder: Path, tmp_path: Path) -> None:
    outputs.publish(folder, save(folder, 1, model=b"m" * 1000, state=b"s" * 1000), 1, fence(outputs))
    new = tmp_path / "new"
    left = new / ".partial-1-1" / "step-00000001"
    left.mkdir(parents=True)
    (left / "model").write_bytes(b"m" * 1000)
    (left / "state.partial").write_bytes(b"s" * 10)
    (new / ".partial-0-9").mkdir()
    came: list[int] = []
    assert outputs.resume(new, count=came.append) is not None
    assert sum(came) == 1000
    assert sorted(path.name for path in (new / "step-00000001").iterdir()) == ["model", "state"]
    assert [path.name for path in new.iterdir()] == ["step-00000001"]


def _contents(name: Name) -> dict[str, bytes]:
    """What the killed program wrote for a checkpoint; it is a file beside this one and no module."""
    spec = importlib.util.spec_from_file_location("publish_forever", HERE / "publish_forever.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, bytes] = module.contents(name.n, name.step)
    return found


def _kill_rounds(url: str, tmp_path: Path, rounds: int, server: ObjectStore | None) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    outputs = Outputs(Remote(url, patience=Patience(seconds=30)))
    reported: list[str] = []
    for number in range(rounds):
        program = subprocess.Popen(
            [sys.executable, HERE / "publish_forever.py", url, tmp_path / f"node{number % 3}"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        said: list[str] = []
        if chance.random() < 0.8:  # mostly from where it publishes, now and then while it starts or resumes
            assert program.stdout is not None
            while not (said and said[-1].startswith("fence")):
                said.append(program.stdout.readline())
                assert said[-1], "it ended by itself"
        time.sleep(chance.uniform(0, 1.5))
        if server is not None and chance.random() < 0.3:
            server.kill9()
            time.sleep(chance.uniform(0, 0.5))
            server.restart()
        program.send_signal(signal.SIGKILL)
        said += program.communicate()[0].splitlines()
        reported += [line.split()[1] for line in said if line.startswith("published")]
        into = tmp_path / "check"
        resumed = outputs.resume(into)
        if resumed is None:
            assert not reported
            continue
        assert not resumed.passed_over
        for path, content in _contents(resumed.name).items():
            assert (into / path).read_bytes() == content, (seed, number, path)
        if reported:
            last = Name.parse(reported[-1])
            assert last is not None
            assert resumed.name >= last, (seed, number, "what was reported as there is not there")
        shutil.rmtree(into)
        with contextlib.suppress(FileNotFoundError):
            for old in sorted((tmp_path / f"node{number % 3}").iterdir())[:-2]:
                shutil.rmtree(old, ignore_errors=True)
    sizes = {item.key: item.size for item in outputs.remote.listing("data")}
    for one in reported:
        name = Name.parse(one)
        assert name is not None
        for file in outputs.checkpoint(name).files:
            assert sizes[f"data/{file.hash}"] == file.size


def test_killed_at_any_moment_nothing_reported_is_lost_and_nothing_half_is_seen(url: str, tmp_path: Path) -> None:
    _kill_rounds(url, tmp_path, 6, None)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_killed_a_hundred_times_worker_or_server(url: str, tmp_path: Path, s3: ObjectStore) -> None:
    _kill_rounds(url, tmp_path, 100, s3)
