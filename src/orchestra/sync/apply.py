"""A manifest becomes a tree: built beside the old one, shown at once.

    <root>/trees/<id>-<n>/   complete trees; the running program keeps the one it started in
    <root>/trees/.new-...    being built, or left behind by a killed process
    <root>/current           link to the tree that counts

Whoever opens `current` sees one whole snapshot or another, also when the applier is killed at any moment. After a
loss of power a tree may have holes; the next `apply` looks at every file and builds it anew.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from orchestra.api.problem import Invalid
from orchestra.sync.blobs import Source
from orchestra.sync.errors import NoRoom, SyncError
from orchestra.sync.handles import Handles
from orchestra.sync.manifest import Entry, Manifest, what_is_wrong
from orchestra.sync.reading import Tree

CURRENT = "current"
_TREES = "trees"
_NEW = ".new-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Applied:
    """A snapshot that stands as a tree."""

    id: str
    tree: Path
    """The tree itself; `<root>/current` leads to it. A program that is to be undisturbed by later flips works here."""
    built: bool
    """False when it stood already, and every file in it was still right."""


def apply(manifest: Manifest, source: Source, root: Path, *, keep: int = 1) -> Applied:
    """Build the tree of a manifest under `root` and make it current. Nothing outside of `root` is touched.

    `keep` older trees stay, for programs that still work in them. On any error the old tree stays current.
    Files that a program added to a tree that is already right are left alone.
    """
    staged = stage(manifest, source, root)
    with _locked(root):
        _flip(root, staged.tree)
        _drop_old(root, keep)
    return staged


def stage(manifest: Manifest, source: Source, root: Path) -> Applied:
    """Build the tree, or find it, without making it current: `flip` does that later, at an agreed moment."""
    problems = what_is_wrong(manifest)
    if problems:
        raise Invalid(problems)
    id = manifest.id
    trees = root / _TREES
    trees.mkdir(parents=True, exist_ok=True)
    with _locked(root):
        _clear_leftovers(trees)
        standing = current(root)
        if standing is not None and standing.name.startswith(f"{id}-") and is_whole(standing, manifest):
            return Applied(id, standing, built=False)
        draft = trees / f"{_NEW}{secrets.token_hex(8)}"
        try:
            draft.mkdir()
            with _Builder(draft, source) as builder:
                builder.build(manifest)
            tree = _named(trees, id)
            draft.rename(tree)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            if error.errno in _FULL:
                raise NoRoom(f"no room for the workspace in {root}: {error.strerror}; the old one stays") from error
            raise SyncError(f"the workspace cannot be written to {root}: {error.strerror}") from error
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    return Applied(id, tree, built=True)


def flip(root: Path, staged: Applied, *, keep: int = 1) -> None:
    """Make a staged tree the current one, in one move."""
    with _locked(root):
        _flip(root, staged.tree)
        _drop_old(root, keep)


def current(root: Path) -> Path | None:
    """The tree that counts now, or None."""
    try:
        tree = root / (root / CURRENT).readlink()
    except OSError:
        return None
    return tree if tree.is_dir() else None


def is_whole(tree: Path, manifest: Manifest) -> bool:
    """Whether everything of a manifest stands in a tree as it should. Reads every file."""
    try:
        with Tree(tree) as reader:
            return all(_is_right(tree, reader, entry) for entry in manifest.entries)
    except (OSError, SyncError):
        return False


def _is_right(tree: Path, reader: Tree, entry: Entry) -> bool:
    path = tree / entry.path
    about = path.lstat()
    if entry.mode == "link":
        return stat.S_ISLNK(about.st_mode) and str(path.readlink()) == entry.content
    if entry.mode == "folder":
        return stat.S_ISDIR(about.st_mode)
    if about.st_size != entry.size or bool(about.st_mode & 0o100) != (entry.mode == "program"):
        return False
    return reader.hash(entry.path)[0] == entry.content


class _Builder:
    """Writes below one open folder, by single names under handles: no path is ever resolved a second time."""

    def __init__(self, folder: Path, source: Source) -> None:
        self._source = source
        self._handles = Handles(folder, make=True)

    def __enter__(self) -> _Builder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handles.close()

    def build(self, manifest: Manifest) -> None:
        """Everything; links last, so that nothing is ever written through one."""
        for entry in sorted(manifest.entries, key=lambda entry: (entry.mode == "link", entry.path)):
            folder, name = self._handles.folder_of(entry.path), entry.path.rsplit("/", 1)[-1]
            if entry.mode == "folder":
                os.mkdir(name, 0o755, dir_fd=folder)
            elif entry.mode == "link":
                os.symlink(entry.content, name, dir_fd=folder)
            elif not self._source.link(entry, name, folder):
                self._write(entry, name, folder)

    def _write(self, entry: Entry, name: str, folder: int) -> None:
        mode = 0o755 if entry.mode == "program" else 0o644
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
        try:
            self._source.write(entry, descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One applier at a time; the lock goes with its holder."""
    handle = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _named(trees: Path, id: str) -> Path:
    number = 1
    while (tree := trees / f"{id}-{number}").exists():
        number += 1
    return tree


def _flip(root: Path, tree: Path) -> None:
    if not tree.is_dir():
        raise SyncError(f"the tree {tree.name[:12]} was staged but is gone; stage it again. The old one stays")
    draft = root / f"{_NEW}{CURRENT}"
    draft.unlink(missing_ok=True)
    draft.symlink_to(Path(_TREES) / tree.name)
    draft.replace(root / CURRENT)
    os.utime(tree)  # what was current last is kept longest


def _drop_old(root: Path, keep: int) -> None:
    now = current(root)
    others = [tree for tree in (root / _TREES).iterdir() if tree != now and not tree.name.startswith(_NEW)]
    others.sort(key=lambda tree: tree.stat().st_mtime_ns, reverse=True)
    for tree in others[keep:]:
        # Renamed first: killed in the middle, we leave rubbish rather than half a tree under a good name.
        doomed = tree.rename(tree.with_name(f"{_NEW}{secrets.token_hex(8)}"))
        shutil.rmtree(doomed, ignore_errors=True)


def _clear_leftovers(trees: Path) -> None:
    for path in trees.glob(f"{_NEW}*"):
        shutil.rmtree(path, ignore_errors=True)
