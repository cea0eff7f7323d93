"""Checkpoints in an object store: complete or not there, whoever is killed and whenever (protocol: chain.py).

Content first, skipping what is there; then, of several nodes, a part from each; then one manifest, create-only. A
checkpoint that `publish` has reported is there until somebody deletes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from orchestra.sync.chain import Fence, Holder, Name, chain, newest_fence, take_fence
from orchestra.sync.errors import Changed, Damaged, Missing, SyncError, Taken
from orchestra.sync.hashing import is_hash
from orchestra.sync.index import Index
from orchestra.sync.paths import Twins, what_is_wrong_with_path
from orchestra.sync.pieces import read_checked
from orchestra.sync.reading import Tree, same_moment
from orchestra.sync.remote import Remote
from orchestra.sync.restore import restore

__all__ = ["Checkpoint", "Fence", "File", "Holder", "Name", "Outputs", "Published", "Resumed"]

_AT_ONCE = 4
_POLL_S = 0.5

Count = Callable[[int], None]


class File(msgspec.Struct, frozen=True, array_like=True):
    """One file of a checkpoint."""

    path: str
    hash: str
    size: int


class Checkpoint(msgspec.Struct, frozen=True):
    """A manifest: everything that is in a checkpoint."""

    n: int
    step: int
    nodes: int
    files: tuple[File, ...]
    version: int = 1


class _Part(msgspec.Struct, frozen=True):
    node: int
    files: tuple[File, ...]


@dataclass(frozen=True)
class Published:
    """A checkpoint (or one node's part of it) that is in the store, whole."""

    name: Name
    files: int
    bytes: int
    sent: int
    """Bytes that were not there yet."""


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that was brought here, and the newer ones that were not fit for it, each with the reason."""

    name: Name
    files: tuple[File, ...]
    passed_over: tuple[tuple[Name, str], ...]


class Outputs:
    """The checkpoints below one URL: one training's, over all its attempts."""

    def __init__(self, remote: Remote, *, index: Path | None = None) -> None:
        self.remote = remote
        self._index = index

    def take_fence(self, holder: Holder) -> Fence:
        """The next number to publish under. Taken once an attempt or elastic round, by node 0, after `resume`."""
        return take_fence(self.remote, holder)

    def newest_fence(self) -> Fence | None:
        """Who began last on this output."""
        return newest_fence(self.remote)

    def names(self) -> list[Name]:
        """The checkpoints that count, newest first."""
        return list(chain(self.remote))

    def publish(
        self,
        folder: Path,
        files: Sequence[str],
        step: int,
        fence: Fence,
        *,
        node: int = 0,
        nodes: int = 1,
        timeout: float = 1800.0,
        count: Count | None = None,
    ) -> Published:
        """Upload the checkpoint of a step; its files must be complete (complete.py) and are relative to `folder`.

        Every node calls this with its own files. Node 0 waits for the parts of all others, then writes the manifest;
        the others return when their part is there. `Changed` when a file was touched meanwhile: nothing is published.
        """
        name = Name(fence.n, step)
        mine, sent = self._upload(folder, files, count)
        total = sum(file.size for file in mine)
        if nodes > 1:
            part = msgspec.json.encode(_Part(node, mine))
            self._create(f"parts/{name}/{node}.json", part, name)
        if node == 0:
            every = self._gathered(name, nodes, timeout) if nodes > 1 else mine
            self._create(name.key, msgspec.json.encode(_checked(Checkpoint(name.n, step, nodes, every))), name)
        return Published(name, len(mine), total, sent)

    def resume(self, into: Path, *, count: Count | None = None) -> Resumed | None:
        """Bring the newest checkpoint that is whole; None where there is none at all.

        A checkpoint that lacks something, or whose content is not what it should be, is passed over, and told in
        `passed_over`. That the store does not answer, or the disk is full, is not its fault and is raised.
        """
        passed: list[tuple[Name, str]] = []
        sizes: dict[str, int] | None = None
        for name in self.names():
            try:
                checkpoint = self.checkpoint(name)
                sizes = sizes if sizes is not None else self._listed()
                _compare(checkpoint, sizes)
                restore(self.remote, checkpoint.files, into, str(name), count)
            except (Damaged, Missing) as error:
                passed.append((name, str(error)))
                continue
            return Resumed(name, checkpoint.files, tuple(passed))
        if passed:
            told = "\n".join(f"  {name}: {reason}" for name, reason in passed)
            raise Damaged(f"no checkpoint in {self.remote.url} is whole:\n{told}")
        return None

    def checkpoint(self, name: Name) -> Checkpoint:
        """A manifest, checked for what it says; what it names is not looked at."""
        try:
            return _checked(msgspec.json.decode(self.remote.get(name.key), type=Checkpoint), name)
        except msgspec.MsgspecError as error:
            raise Damaged(f"{self.remote.url}/{name.key} cannot be read: {error}") from error

    # ---- within

    def _upload(self, folder: Path, files: Sequence[str], count: Count | None) -> tuple[tuple[File, ...], int]:
        index = Index(self._index, folder) if self._index else Index.of(folder)
        found = []
        with Tree(folder) as tree:
            for path in sorted(files):
                about = _lstat(folder / path)
                digest = index.hash_of(path, about, lambda path=path: tree.hash(path))  # type: ignore[misc]
                found.append((File(path, digest, about.st_size), about))
        index.save()
        there = self._listed()
        missing = {file.hash: (file, about) for file, about in found if there.get(file.hash) != file.size}

        def send(one: tuple[File, object]) -> None:
            file, _ = one
            path = folder / file.path
            self.remote.put_named_by_hash(
                f"data/{file.hash}", lambda: read_checked(path, file.size, file.hash, count=count), file.size
            )

        self.remote.each(send, missing.values(), _AT_ONCE)
        for file, about in found:
            if not same_moment(about, _lstat(folder / file.path)):
                raise Changed(f"{file.path} changed while the checkpoint was uploaded: it was not complete")
        return tuple(file for file, _ in found), sum(file.size for file, _ in missing.values())

    def _listed(self) -> dict[str, int]:
        return {item.key.removeprefix("data/"): item.size for item in self.remote.listing("data")}

    def _create(self, key: str, data: bytes, name: Name) -> None:
        try:
            self.remote.put_new(key, data)
        except Taken as error:
            raise Taken(f"checkpoint {name} was published before, with other content; take a new fence") from error

    def _gathered(self, name: Name, nodes: int, timeout: float) -> tuple[File, ...]:
        until = time.monotonic() + timeout
        wanted = {f"parts/{name}/{node}.json" for node in range(nodes)}
        while lacking := wanted - {item.key for item in self.remote.listing(f"parts/{name}")}:
            if time.monotonic() > until:
                late = ", ".join(sorted(key.rsplit("/", 1)[-1].removesuffix(".json") for key in lacking))
                raise SyncError(f"checkpoint {name} is not published: no part from node {late} in {timeout:g} s")
            time.sleep(_POLL_S)
        files: dict[str, File] = {}
        for key in sorted(wanted):
            try:
                part = msgspec.json.decode(self.remote.get(key), type=_Part)
            except msgspec.MsgspecError as error:
                raise Damaged(f"{self.remote.url}/{key} cannot be read: {error}") from error
            for file in part.files:
                if files.setdefault(file.path, file) != file:
                    raise Taken(f"{file.path} of checkpoint {name} comes from two nodes with different content")
        return tuple(files[path] for path in sorted(files))


def _lstat(path: Path) -> os.stat_result:
    try:
        return path.lstat()
    except OSError as error:
        raise Changed(f"{path.name} is gone: {error.strerror}") from error


def _compare(checkpoint: Checkpoint, sizes: dict[str, int]) -> None:
    for file in checkpoint.files:
        if file.hash not in sizes:
            raise Missing(f"the content of {file.path} is not there")
        if sizes[file.hash] != file.size:
            raise Damaged(f"{file.path} has {sizes[file.hash]} bytes instead of {file.size}")


def _checked(checkpoint: Checkpoint, name: Name | None = None) -> Checkpoint:
    """The same, if it can become files. It may come from anybody who can write to the store."""
    twins = Twins()
    if checkpoint.version != 1 or (name is not None and (checkpoint.n, checkpoint.step) != (name.n, name.step)):
        raise Damaged("the manifest is not of this name, or of a later version")
    paths = {file.path for file in checkpoint.files}
    for file in checkpoint.files:
        wrong = what_is_wrong_with_path(file.path) or twins.add(file.path)
        above = any(str(folder) in paths for folder in PurePosixPath(file.path).parents)
        if wrong or above or not is_hash(file.hash) or file.size < 0:
            raise Damaged(f"the manifest names a file that cannot be: {file.path!a}: {wrong or 'it makes no sense'}")
    return checkpoint
