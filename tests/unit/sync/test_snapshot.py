"""Snapshots: the same tree has the same name, edits are never missed, hostile trees are answered in words."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.api.problem import Invalid
from orchestra.sync.index import Index
from orchestra.sync.manifest import Entry, Manifest, changes, decode, what_is_wrong
from orchestra.sync.snapshot import Limits, snapshot

_TREES = st.dictionaries(
    st.lists(st.sampled_from(["a", "b", "c d", "é", "x.py"]), min_size=1, max_size=3).map("/".join),
    st.binary(max_size=40),
    max_size=8,
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def write(folder: Path, tree: dict[str, bytes]) -> None:
    for path, content in tree.items():
        target = folder / path
        if target.is_dir() or any(parent.is_file() for parent in target.parents):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


@settings(max_examples=40, deadline=None)
@given(tree=_TREES)
def test_the_same_tree_has_the_same_name_however_it_was_made(tree: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        write(Path(one), tree)
        shutil.copytree(one, other, dirs_exist_ok=True)
        for at, folders, _ in os.walk(other):
            os.utime(at, (1, 1))
            folders.reverse()
        first, second = snapshot(Path(one)), snapshot(Path(other))
        assert first.id == second.id
        assert len(first.id) == 64
        assert decode(first.manifest.encode(), first.id) == first.manifest
        assert not changes(first.manifest, second.manifest)


def test_content_path_and_mode_make_the_name(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1", "b": b"2"})
    ids = [snapshot(tmp_path).id]
    (tmp_path / "a").write_bytes(b"2")
    ids.append(snapshot(tmp_path).id)
    (tmp_path / "a").chmod(0o755)
    ids.append(snapshot(tmp_path).id)
    (tmp_path / "a").rename(tmp_path / "c")
    ids.append(snapshot(tmp_path).id)
    (tmp_path / "empty").mkdir()
    ids.append(snapshot(tmp_path).id)
    (tmp_path / "link").symlink_to("c")
    ids.append(snapshot(tmp_path).id)
    assert len(set(ids)) == len(ids)


def test_an_edit_within_the_same_tick_of_the_clock_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    seen = set()
    for number in range(20):
        file.write_bytes(b"%02d" % number)  # same size, and mostly the same mtime
        os.utime(file, (1_000_000_000, 1_000_000_000))
        seen.add(snapshot(tmp_path).id)
    assert len(seen) == 20


def test_an_unchanged_file_is_not_read_again_but_a_touched_one_is(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder, {"a": b"1", "b": b"2"})
    later = time.time_ns() + 10_000_000_000
    index = Index(tmp_path / "index", folder, now=lambda: later)
    first = snapshot(folder, index=index)

    def unread() -> tuple[str, os.stat_result]:
        raise AssertionError("read again")

    again = Index(tmp_path / "index", folder, now=lambda: later)
    hashes = {entry.path: entry.content for entry in first.manifest.entries}
    assert again.hash_of("a", (folder / "a").stat(), unread) == hashes["a"]
    shutil.copystat(folder / "a", folder / "b")
    with pytest.raises(AssertionError, match="read again"):
        again.hash_of("b", (folder / "b").stat(), unread)


def test_a_damaged_index_is_as_good_as_none(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder, {"a": b"1"})
    before = snapshot(folder, index=Index(tmp_path / "index", folder)).id
    (tmp_path / "index").write_bytes(b"\x93nonsense")
    assert snapshot(folder, index=Index(tmp_path / "index", folder)).id == before


def test_changes_tells_added_removed_and_changed(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1", "b": b"2", "c": b"3"})
    before = snapshot(tmp_path).manifest
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_bytes(b"4")
    (tmp_path / "d").write_bytes(b"5")
    found = changes(before, snapshot(tmp_path).manifest)
    assert (found.added, found.removed, found.changed) == (("d",), ("a",), ("b",))


def test_the_commit_and_the_dirty_flag_are_recorded(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t", *words], check=True)

    write(tmp_path, {"a": b"1"})
    assert snapshot(tmp_path).commit is None
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = snapshot(tmp_path).commit
    assert commit is not None
    assert (len(commit.id), commit.dirty) == (40, False)
    (tmp_path / "new").write_bytes(b"")
    commit = snapshot(tmp_path).commit
    assert commit is not None
    assert commit.dirty


def test_special_files_and_links_that_lead_out_stay_home_with_a_reason(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder, {"a/b.py": b"1"})
    os.mkfifo(folder / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.close()
    (folder / "out").symlink_to("/etc")
    (folder / "up").symlink_to("../elsewhere")
    (folder / "self").symlink_to(".")
    (folder / "sly").symlink_to("self/../elsewhere")  # `self/..` is the parent of the folder, not the folder
    (folder / "slyer").symlink_to("sly/x")
    (folder / "fine").symlink_to("a/b.py")
    (folder / "dangling").symlink_to("a/nothing")
    if os.geteuid() == 0:
        os.mknod(folder / "device", 0o600 | 0o020000, os.makedev(1, 3))
    taken = snapshot(folder)
    assert [entry.path for entry in taken.manifest.entries] == ["a/b.py", "dangling", "fine", "self"]
    left = {one.path: one.reason for one in taken.left}
    assert left["fifo"] == "a FIFO: only files, folders and links ship"
    assert left["socket"].startswith("a socket")
    assert "points out of the folder, to /etc" in left["out"]
    assert {"out", "up", "sly", "slyer"} <= {warning.split()[0] for warning in taken.warnings}
    if os.geteuid() == 0:
        assert left["device"].startswith("a device")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["README.md", "readme.md"], "the same name as README.md"),
        (["é.py", "e\u0301.py"], "the same name as"),
        (["a\\b"], "slash or backslash"),
        (["a\nb"], "control character"),
        ([b"caf\xe9"], "not UTF-8"),
    ],
)
def test_names_that_cannot_travel_are_refused_by_name(tmp_path: Path, names: list[str | bytes], words: str) -> None:
    for name in names:
        with open(os.path.join(os.fsencode(tmp_path), os.fsencode(name)), "w"):  # noqa: PTH118, PTH123 - bytes
            pass
    with pytest.raises(Invalid, match=words):
        snapshot(tmp_path)


def test_a_folder_that_is_too_large_is_refused_with_the_largest_folders(tmp_path: Path) -> None:
    write(tmp_path, {f"data/part{n}/{m}": b"x" * 100 for n in range(12) for m in range(n + 1)})
    with pytest.raises(Invalid) as refused:
        snapshot(tmp_path, limits=Limits(most_files=50))
    assert "78 files are more than a workspace may have (50)" in str(refused.value)
    assert "data/ (78 files), data/part11/ (12 files)" in str(refused.value)
    assert "data/part2/" not in str(refused.value)
    with pytest.raises(Invalid, match=r"most of it is in data/ \(0.0 MiB\)"):
        snapshot(tmp_path, limits=Limits(most_bytes=5000))
    assert "largest folders: data/" in snapshot(tmp_path, limits=Limits(warn_files=50)).warnings[0]


def test_two_hundred_thousand_files_are_refused_quickly() -> None:
    memory = Path("/dev/shm")  # making the files is what takes long, not refusing them
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        for number in range(4):
            below = f"{folder}/d{number}"
            Path(below).mkdir()
            Path(f"{below}/seed").touch()
            for link in range(50_000):
                os.link(f"{below}/seed", f"{below}/{link}")
        began = time.monotonic()
        with pytest.raises(Invalid, match=r"more than 200,000 files are more .* in d0/ \(50,001 files\)"):
            snapshot(Path(folder))
        assert time.monotonic() - began < 100  # seconds: a busy machine has counted 13


def _with(*entries: Entry) -> list[str]:
    return [str(problem) for problem in what_is_wrong(Manifest(tuple(sorted(entries))))]


_H = "0" * 64


@pytest.mark.parametrize(
    "entry",
    [
        Entry("../x", "file", _H),
        Entry("a/../../x", "file", _H),
        Entry("/etc/passwd", "file", _H),
        Entry("a//b", "file", _H),
        Entry("./a", "file", _H),
        Entry("", "file", _H),
        Entry("a\0b", "file", _H),
        Entry("a\\..\\b", "file", _H),
        Entry("a", "file", "../../etc/passwd"),
        Entry("a", "file", _H, -1),
        Entry("a", "link", "/etc/passwd"),
        Entry("a", "link", "../x"),
        Entry("d/a", "link", "../../x"),
        Entry("a", "link", ""),
    ],
)
def test_a_hostile_manifest_is_refused(entry: Entry) -> None:
    assert _with(entry)


def test_a_manifest_cannot_write_through_its_own_link_or_file() -> None:
    assert "which is a link" in _with(Entry("a", "link", "b"), Entry("a/x", "file", _H), Entry("b/y", "file", _H))[0]
    assert "which is a file" in _with(Entry("a", "file", _H), Entry("a/x", "file", _H))[0]
    assert _with(Entry("A/x", "file", _H), Entry("a/y", "file", _H))
    assert _with(Entry("b", "link", "."), Entry("c", "link", "b/../x"))
    assert _with(Entry("a", "link", "a/b"))
    assert not _with(Entry("a/x", "file", _H), Entry("l", "link", "a/../a/x"), Entry("m", "link", "nothing"))


@settings(max_examples=60, deadline=None)
@given(
    links=st.dictionaries(
        st.sampled_from(["a", "b", "d/c", "d/e"]),
        st.lists(st.sampled_from([".", "..", "a", "b", "c", "d", "e"]), min_size=1, max_size=5).map("/".join),
        min_size=1,
    )
)
def test_links_that_are_let_through_lead_nowhere_outside_on_a_real_disk(links: dict[str, str]) -> None:
    entries = [Entry(path, "link", target) for path, target in links.items()]
    if what_is_wrong(Manifest(tuple(sorted(entries)))):
        return
    with tempfile.TemporaryDirectory() as name:
        root = (Path(name) / "root").resolve()
        (root / "d").mkdir(parents=True)
        for path, target in links.items():
            (root / path).symlink_to(target)
        for path in links:
            try:
                real = (root / path).resolve()
            except (OSError, RuntimeError):
                continue
            assert real == root or root in real.parents
