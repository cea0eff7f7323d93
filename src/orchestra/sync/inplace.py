"""A snapshot that stands as a folder itself and changes there: the folder is a mount, so no link can flip it.

    <folder>/...                       the tree
    <folder>/.orchestra/standing.json  what stands there
    <folder>/.orchestra/next/...       what the next snapshot has and this one lacks, complete and checked

`stage` needs the store, room and time, and touches nothing that anybody reads. `flip` only moves what is staged, on one
file system, while nobody reads: the ranks of all workers have stopped. What a program wrote beside its code stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import msgspec

from orchestra.sync.apply import stage as build
from orchestra.sync.blobs import Blobs
from orchestra.sync.errors import Damaged, Missing, SyncError
from orchestra.sync.manifest import Entry, Manifest, decode
from orchestra.sync.store import Store

INSIDE = ".orchestra"
_TRIES = 3


class Standing(msgspec.Struct, frozen=True):
    """What stands in a folder."""

    id: str
    manifest: bytes
    since: int
    """When it stood, in nanoseconds: a file that changed later is the program's doing."""


class Staged(msgspec.Struct, frozen=True):
    """What is ready to be moved."""

    id: str
    manifest: bytes
    tree: str
    paths: list[str]
    removed: list[str]


def standing(folder: Path) -> Standing | None:
    """What stands there, if that was written down."""
    try:
        return msgspec.json.decode((folder / INSIDE / "standing.json").read_bytes(), type=Standing)
    except (OSError, msgspec.MsgspecError):
        return None


def stood(folder: Path, id: str, manifest: bytes) -> None:
    """Writes down that a snapshot stands in a folder, whole."""
    inside = folder / INSIDE
    inside.mkdir(exist_ok=True)
    probe = inside / ".now"
    probe.write_bytes(b"")  # the file system's own clock, which the files were written by
    _replace(inside / "standing.json", msgspec.json.encode(Standing(id, manifest, probe.stat().st_mtime_ns)))
    probe.unlink()


def stage(store: Store, id: str, folder: Path) -> Staged:
    """Brings what the folder lacks of a snapshot, beside it. Nobody sees it yet. Staging another replaces this one."""
    now = standing(folder)
    if now is None:
        raise SyncError(f"what stands in {folder} is not known: it was not brought there from the workspace store")
    wanted, inside = store.manifest(id), folder / INSIDE / "next"
    lacking = _lacking(decode(now.manifest, now.id), wanted, folder, now.since)
    kept = {entry.path for entry in wanted.entries}
    removed = [entry.path for entry in decode(now.manifest, now.id).entries if entry.path not in kept]
    part = Manifest(tuple(lacking))
    for attempt in range(1, _TRIES + 1):
        shutil.rmtree(inside, ignore_errors=True)
        inside.mkdir(parents=True)
        blobs = Blobs(inside / "blobs", link=True)
        store.pull(id, blobs, only=set(part.blobs()))
        try:
            tree = build(part, blobs, inside).tree
            break
        except Damaged:
            if attempt == _TRIES:
                raise
    shutil.rmtree(inside / "blobs")
    made = Staged(id, wanted.encode(), str(tree.relative_to(folder)), [entry.path for entry in lacking], removed)
    _replace(inside / "staged.json", msgspec.json.encode(made))
    return made


def flip(folder: Path, id: str) -> None:
    """Moves what is staged into its place. Cut off in the middle and called again, it goes on."""
    inside = folder / INSIDE / "next"
    try:
        staged = msgspec.json.decode((inside / "staged.json").read_bytes(), type=Staged)
    except (OSError, msgspec.MsgspecError) as error:
        now = standing(folder)
        if now is not None and now.id == id:
            return
        raise Missing(f"snapshot {id[:12]} is not staged in {folder}") from error
    if staged.id != id:
        raise Missing(f"snapshot {id[:12]} is not staged in {folder}, but {staged.id[:12]}")
    try:
        for path in staged.removed:
            _remove(folder, path)
        for path in staged.paths:
            _move(folder / staged.tree / path, folder, path)
    except OSError as error:
        raise SyncError(f"{error.filename}: {error.strerror}; the new code is not whole in {folder}") from error
    stood(folder, id, staged.manifest)
    shutil.rmtree(inside, ignore_errors=True)


def _lacking(old: Manifest, new: Manifest, folder: Path, since: int) -> list[Entry]:
    before = {entry.path: entry for entry in old.entries}
    return [entry for entry in new.entries if before.get(entry.path) != entry or _touched(folder, entry, since)]


def _touched(folder: Path, entry: Entry, since: int) -> bool:
    """Whether the program has changed what was brought: then it is brought anew."""
    try:
        about = (folder / entry.path).lstat()
    except OSError:
        return True
    return entry.has_blob and (about.st_size != entry.size or about.st_mtime_ns > since)


def _move(staged: Path, folder: Path, path: str) -> None:
    there = folder / path
    if not os.path.lexists(staged):
        if os.path.lexists(there):
            return  # moved before we were cut off
        raise FileNotFoundError(2, "what was staged is gone", str(staged))
    _make_way(folder, path)
    if there.is_dir() and not there.is_symlink():
        if staged.is_dir() and not staged.is_symlink():
            return  # an empty folder that the program has filled
        shutil.rmtree(there)
    staged.replace(there)
    _forget_compiled(there)


def _make_way(folder: Path, path: str) -> None:
    """Folders above a path are folders: never a link that would lead elsewhere."""
    above = folder
    for name in path.split("/")[:-1]:
        above /= name
        if above.is_symlink() or (above.exists() and not above.is_dir()):
            above.unlink()
        above.mkdir(exist_ok=True)


def _remove(folder: Path, path: str) -> None:
    there = folder / path
    if any(above.is_symlink() for above in there.parents if above != folder and above.is_relative_to(folder)):
        return  # not what we brought
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        there.unlink() if there.is_symlink() or not there.is_dir() else there.rmdir()
    _forget_compiled(there)
    for above in there.parents:
        if above == folder:
            return
        shutil.rmtree(above / "__pycache__", ignore_errors=True) if _only_compiled(above) else None
        try:
            above.rmdir()
        except OSError:
            return


def _only_compiled(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return [entry.name for entry in folder.iterdir()] == ["__pycache__"]
    return False


def _forget_compiled(source: Path) -> None:
    """Python trusts a compiled file of the same second and size."""
    if source.suffix == ".py":
        for compiled in (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"):
            compiled.unlink(missing_ok=True)


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(data)
    draft.replace(path)
