"""The applier: a whole tree or the old one, and nothing outside of its folder."""

import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestra.api.problem import Invalid
from orchestra.sync.apply import Applied, apply, current, flip, is_whole, stage
from orchestra.sync.blobs import Blobs, FolderSource
from orchestra.sync.errors import Changed, Damaged, Missing, NoRoom, SyncError
from orchestra.sync.hashing import hash_of
from orchestra.sync.index import Index
from orchestra.sync.manifest import Entry, Manifest
from orchestra.sync.snapshot import Snapshot, snapshot
from orchestra.sync.workspace import capture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "pkg" / "deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "train.py").write_text("print(1)\n")
    (folder / "pkg" / "deep" / "model.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("pkg/deep/model.py")
    return folder


def look(folder: Path) -> Snapshot:
    return snapshot(folder, index=Index(Path("/nonexistent/index"), folder))


def put(folder: Path, root: Path) -> Applied:
    with FolderSource(folder) as source:
        return apply(look(folder).manifest, source, root)


def test_the_tree_is_the_folder(folder: Path, tmp_path: Path) -> None:
    applied = put(folder, tmp_path / "root")
    assert current(tmp_path / "root") == applied.tree
    assert look(applied.tree).id == applied.id == look(folder).id
    assert (tmp_path / "root" / "current" / "link").read_text() == "x = 1\n"
    assert stat.S_IMODE((applied.tree / "run.sh").stat().st_mode) & 0o111
    assert (applied.tree / "empty").is_dir()


def test_editing_the_folder_changes_nothing_until_it_is_applied_again(folder: Path, tmp_path: Path) -> None:
    first = put(folder, tmp_path / "root")
    (folder / "train.py").write_text("print(2)\n")
    assert (first.tree / "train.py").read_text() == "print(1)\n"
    second = put(folder, tmp_path / "root")
    assert (tmp_path / "root" / "current" / "train.py").read_text() == "print(2)\n"
    assert (first.tree / "train.py").read_text() == "print(1)\n", "a program may still work in the old tree"
    (folder / "train.py").write_text("print(3)\n")
    put(folder, tmp_path / "root")
    assert not first.tree.exists()
    assert second.tree.exists()


def test_a_tree_that_stands_is_used_again_unless_somebody_changed_it(folder: Path, tmp_path: Path) -> None:
    first = put(folder, tmp_path / "root")
    assert not put(folder, tmp_path / "root").built
    (first.tree / "train.py").write_text("print(0)\n")
    again = put(folder, tmp_path / "root")
    assert again.built
    assert (again.tree / "train.py").read_text() == "print(1)\n"


def test_staging_shows_nothing_until_the_flip(folder: Path, tmp_path: Path) -> None:
    first = put(folder, tmp_path / "root")
    (folder / "train.py").write_text("print(2)\n")
    with FolderSource(folder) as source:
        staged = stage(look(folder).manifest, source, tmp_path / "root")
    assert current(tmp_path / "root") == first.tree
    flip(tmp_path / "root", staged)
    assert current(tmp_path / "root") == staged.tree
    shutil.rmtree(first.tree)
    with pytest.raises(SyncError, match="stage it again"):
        flip(tmp_path / "root", first)
    assert current(tmp_path / "root") == staged.tree


def test_a_file_that_changed_since_the_snapshot_is_not_passed_off_as_it(folder: Path, tmp_path: Path) -> None:
    manifest = look(folder).manifest
    (folder / "train.py").write_text("print(2)\n")
    with FolderSource(folder) as source, pytest.raises(Changed, match=r"train\.py changed"):
        apply(manifest, source, tmp_path / "root")
    assert current(tmp_path / "root") is None
    assert list((tmp_path / "root" / "trees").iterdir()) == []


def test_capture_looks_again_when_a_file_changes_under_it(folder: Path, tmp_path: Path) -> None:
    taken, applied = capture(folder, tmp_path / "root", index=Index(tmp_path / "index", folder))
    assert taken.id == applied.id
    assert is_whole(applied.tree, taken.manifest)


@pytest.mark.parametrize(
    "entries",
    [
        [Entry("../x", "file", hash_of(b""))],
        [Entry("/tmp/x", "file", hash_of(b""))],
        [Entry("a", "link", "/etc"), Entry("b", "file", hash_of(b""))],
        [Entry("a", "link", "b"), Entry("a/x", "file", hash_of(b""))],
        [Entry("A", "file", hash_of(b"")), Entry("a", "file", hash_of(b""))],
    ],
)
def test_a_hostile_manifest_leaves_no_trace(tmp_path: Path, entries: list[Entry]) -> None:
    blobs = Blobs(tmp_path / "blobs")
    blobs.add(hash_of(b""), b"")
    with pytest.raises(Invalid):
        apply(Manifest(tuple(entries)), blobs, tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_blobs_are_linked_where_asked_and_found_out_when_damaged(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", link=True)
    content = b"x" * 100
    name = hash_of(content)
    with pytest.raises(Damaged):
        blobs.add(name, b"other")
    manifest = Manifest(
        (Entry("a", "file", name, 100), Entry("b", "program", name, 100), Entry("c", "file", name, 100))
    )
    with pytest.raises(Missing):
        apply(manifest, blobs, tmp_path / "root")
    blobs.add(name, content)
    tree = apply(manifest, blobs, tmp_path / "root").tree
    assert (tree / "a").stat().st_ino == (tree / "c").stat().st_ino != (tree / "b").stat().st_ino
    assert not (tree / "a").stat().st_mode & 0o222, "shared, so nobody may write into it"
    kept = tmp_path / "blobs" / name
    kept.chmod(0o644)
    kept.write_bytes(b"y" * 100)
    with pytest.raises(Damaged, match="fetch it again"):
        apply(manifest, blobs, tmp_path / "elsewhere")
    assert not blobs.has(name)


def test_a_full_disk_leaves_the_old_tree(folder: Path, tmp_path: Path) -> None:
    first = put(folder, tmp_path / "root")
    (folder / "large").write_bytes(bytes(100_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        with pytest.raises(NoRoom, match="the old one stays"):
            put(folder, tmp_path / "root")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert current(tmp_path / "root") == first.tree
    assert len(list((tmp_path / "root" / "trees").iterdir())) == 1


def _kill_rounds(tmp_path: Path, rounds: int) -> None:
    folders = []
    for version in range(2):
        folder = tmp_path / f"v{version}"
        for number in range(60):
            (folder / f"p{number % 5}").mkdir(parents=True, exist_ok=True)
            (folder / f"p{number % 5}" / f"{number}.py").write_text(f"version = {version}\n")
        folders.append(folder)
    manifests = {look(folder).id: look(folder).manifest for folder in folders}
    root = tmp_path / "root"
    root.mkdir()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(rounds):
        program = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("kill_applier.py"), root, *folders], stdout=subprocess.PIPE
        )
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + chance.uniform(0.02, 0.25)
        while time.monotonic() < deadline:
            tree = current(root)
            if tree is not None:  # held by its own name: `keep` trees stay while we look
                held = os.open(tree, os.O_RDONLY)
                versions = {Path(f"/proc/self/fd/{held}/p{n % 5}/{n}.py").read_text() for n in (0, 13, 59)}
                os.close(held)
                assert len(versions) == 1, tree
        program.send_signal(signal.SIGKILL)
        program.wait()
        program.stdout.close()
        tree = current(root)
        assert tree is None or is_whole(tree, manifests[tree.name.split("-")[0]])
    assert put(folders[0], root).id in manifests


def test_killed_at_any_moment_there_is_never_half_a_tree(tmp_path: Path) -> None:
    _kill_rounds(tmp_path, 6)


@pytest.mark.soak
def test_killed_a_hundred_times_there_is_never_half_a_tree(tmp_path: Path) -> None:
    _kill_rounds(tmp_path, 100)
