"""Where the content of a tree comes from: blobs kept on this machine, or the folder itself."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Protocol

from orchestra.sync.errors import Changed, Damaged, Missing
from orchestra.sync.hashing import hash_of, hasher
from orchestra.sync.manifest import Entry
from orchestra.sync.reading import Tree

_PIECE = 8 << 20


class Source(Protocol):
    """Something that has the contents of a manifest."""

    def write(self, entry: Entry, to: int) -> None:
        """Write an entry's content to an open file. Raises where it is not exactly that content."""

    def link(self, entry: Entry, name: str, folder: int) -> bool:
        """Make the entry a hard link instead; False where that cannot be."""


class FolderSource:
    """The folder that a snapshot was taken of: each file is checked again as it is copied. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._tree = Tree(folder)

    def __enter__(self) -> FolderSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tree.__exit__(kind, error, trace)

    def read(self, entry: Entry) -> bytes:
        """The content of a file, as it was when the snapshot was taken (`Changed` otherwise)."""
        data = self._tree.read(entry.path)
        if hash_of(data) != entry.content:
            raise Changed(f"{entry.path} changed since the snapshot was taken")
        return data

    def write(self, entry: Entry, to: int) -> None:
        """Copy a file."""
        with self._tree.open(entry.path) as descriptor:
            if not _copied(descriptor, to, entry):
                raise Changed(f"{entry.path} changed since the snapshot was taken")

    def link(self, entry: Entry, name: str, folder: int) -> bool:  # noqa: ARG002 - the editor writes into that file
        """Never: editing the folder would change the tree."""
        return False


class Blobs:
    """Contents by hash in a folder of this machine, each kept once. Several processes may share it.

    What is read is checked, so a damaged blob is found, dropped, and fetched again. Linked trees share their files
    with it (`link=True`): fit for a pod of one job, where nobody edits the tree in place.
    """

    def __init__(self, folder: Path, *, link: bool = False) -> None:
        self._folder = folder
        self._link = link
        self._checked: set[str] = set()
        # One flat folder: file systems index large folders well, but spread many small ones over the disk.
        folder.mkdir(parents=True, exist_ok=True)

    def has(self, name: str) -> bool:
        """Whether the blob is here. Whether it is whole is found out by reading it."""
        return self._path(name).exists()

    def names(self) -> set[str]:
        """All that are here, for who asks about many."""
        return set(os.listdir(self._folder))  # noqa: PTH208 (one call for thousands)

    def add(self, name: str, content: bytes) -> None:
        """Keep a content under its hash, which is checked. It appears at once or not at all."""
        if hash_of(content) != name:
            raise Damaged(f"content does not have the hash {name[:12]} it is called by")
        path = self._path(name)
        draft = path.with_name(f".new-{secrets.token_hex(8)}")
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o444)
            try:
                _write_all(descriptor, content)
            finally:
                os.close(descriptor)
            draft.rename(path)
            self._checked.add(name)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def write(self, entry: Entry, to: int) -> None:
        """Copy a blob out."""
        descriptor = self._open(entry)
        try:
            whole = _copied(descriptor, to, entry)
        finally:
            os.close(descriptor)
        if not whole:
            self._drop(entry)

    def link(self, entry: Entry, name: str, folder: int) -> bool:
        """Link a blob, if this is a place for links. One that has to be executable is a copy: modes are shared too."""
        if not self._link or entry.mode == "program":
            return False
        if entry.content not in self._checked:  # what we wrote ourselves a moment ago is not read again
            descriptor = self._open(entry)
            try:
                whole = _copied(descriptor, None, entry)
            finally:
                os.close(descriptor)
            if not whole:
                self._drop(entry)
        try:
            os.link(self._path(entry.content), name, dst_dir_fd=folder, follow_symlinks=False)
        except OSError:
            return False  # another file system, or too many links
        return True

    def _open(self, entry: Entry) -> int:
        try:
            return os.open(self._path(entry.content), os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise Missing(f"the content of {entry.path} is not here") from error

    def _drop(self, entry: Entry) -> None:
        self._checked.discard(entry.content)
        with contextlib.suppress(FileNotFoundError):
            self._path(entry.content).unlink()
        raise Damaged(f"the content kept for {entry.path} was damaged and is dropped; fetch it again")

    def _path(self, name: str) -> Path:
        return self._folder / name


def _copied(descriptor: int, to: int | None, entry: Entry) -> bool:
    """Copy, and tell whether it was exactly the entry's content."""
    if entry.size <= _PIECE:
        data = os.read(descriptor, entry.size + 1)
        if len(data) != entry.size or hash_of(data) != entry.content:
            return False
        if to is not None:
            _write_all(to, data)
        return True
    digest, length = hasher(), 0
    while piece := os.read(descriptor, _PIECE):
        digest.update(piece)
        length += len(piece)
        if length > entry.size:
            return False
        if to is not None:
            _write_all(to, piece)
    return length == entry.size and digest.hexdigest() == entry.content


def _write_all(to: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(to, view) :]
