"""The code of jobs on this machine: each runs on a snapshot of its own, so that editing a folder disturbs nobody.

    <home>/code/blobs/<hash>      every content once, read-only
    <home>/code/snapshots/<id>    manifests
    <job>/code/                   the job's trees (sync/apply.py), `current` being the one it runs in

What does not ship (data that `.gitignore` names, an output folder of an earlier run) is a link to the user's folder
here: on the user's own machine there is no reason to be without it. What the program writes beside its code comes
home when the job rests; nothing is overwritten there and nothing is lost.
"""

from __future__ import annotations

import fcntl
import fnmatch
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from orchestra.local.home import Home, JobFolder
from orchestra.sync.apply import Applied, current, flip, stage
from orchestra.sync.blobs import Blobs, FolderSource
from orchestra.sync.errors import Changed, Missing
from orchestra.sync.hashing import is_hash
from orchestra.sync.manifest import Manifest, decode
from orchestra.sync.snapshot import Limits, Snapshot, snapshot
from orchestra.sync.walk import walk

_TRIES = 3
_ALL = 1_000_000
_NEVER_LINKED = ("__pycache__", "*.py[cod]", "*.swp", "*~", ".DS_Store")
_STAYED = "workdir"
"""Where in the output folder a file goes whose name is taken at home."""


class _Notes(msgspec.Struct):
    """What is remembered of a job's trees."""

    built: dict[str, int] = {}
    """When each tree stood, in nanoseconds: whatever has changed since is the program's doing."""
    home: list[str] = []
    """What came home: later trees link to it."""


class Codes:
    """The snapshots that this engine keeps."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._root = home.code

    # ---- taking snapshots

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is pruned meanwhile: around `keep` and the moment from which a job names the snapshot."""
        with self._locked(fcntl.LOCK_SH):
            yield

    def keep(self, folder: Path, named: Iterable[str] = (), limits: Limits | None = None) -> Snapshot:
        """A snapshot of a folder that later edits do not reach. An unchanged folder costs milliseconds."""
        names, blobs = tuple(named), Blobs(self._root / "blobs")
        for attempt in range(1, _TRIES + 1):
            taken = snapshot(folder, named=names, limits=limits, skip=self._own_folders(folder))
            try:
                self._take_in(taken, blobs)
                break
            except Changed:
                if attempt == _TRIES:
                    raise
        file = self._root / "snapshots" / taken.id
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(f".{taken.id}.{os.getpid()}")
            draft.write_bytes(taken.manifest.encode())
            draft.replace(file)
        return taken

    def _take_in(self, taken: Snapshot, blobs: Blobs) -> None:
        known = blobs.names()
        missing = {entry.content: entry for entry in taken.manifest.entries if entry.has_blob}
        wanted = [entry for name, entry in missing.items() if name not in known]
        if wanted:
            with FolderSource(taken.folder) as source:
                for entry in wanted:
                    blobs.add(entry.content, source.read(entry))

    def _own_folders(self, folder: Path) -> frozenset[str]:
        """The engine's own folder, where it lies in the user's."""
        own, there = self._home.root.resolve(), folder.resolve()
        return frozenset({own.relative_to(there).as_posix()}) if own.is_relative_to(there) else frozenset()

    def manifest(self, id: str) -> Manifest:
        """A snapshot that is kept here."""
        try:
            return decode((self._root / "snapshots" / id).read_bytes(), id) if is_hash(id) else Manifest(())
        except OSError as error:
            raise Missing(f"snapshot {id[:12]} is no longer kept here; submit again") from error

    def content(self, hash: str) -> bytes | None:
        """A blob, if it is here."""
        try:
            return (self._root / "blobs" / hash).read_bytes()
        except OSError:
            return None

    # ---- trees

    def stand_up(self, id: str, job: JobFolder, folder: Path) -> Path:
        """The tree that the job runs in. A tree in use stays as it is, with whatever the program made in it."""
        standing = current(job.code)
        if standing is not None and standing.name.startswith(f"{id}-"):
            return standing
        staged = self.prepare(id, job, folder)
        self.bring_home(job, folder)
        self.link_home(staged.tree, job, folder)
        flip(job.code, staged, keep=_ALL)
        return staged.tree

    def link_home(self, tree: Path, job: JobFolder, folder: Path) -> None:
        """Links what came home from an earlier tree into this one."""
        for path in _read(job).home:
            if (folder / path).exists() and not os.path.lexists(tree / path):
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                (tree / path).symlink_to(folder / path)

    def prepare(self, id: str, job: JobFolder, folder: Path) -> Applied:
        """Builds a tree beside the one in use, or finds it; `sync.apply.flip` makes it the current one."""
        manifest = self.manifest(id)
        job.code.mkdir(parents=True, exist_ok=True)
        staged = stage(manifest, Blobs(self._root / "blobs"), job.code)
        notes = _read(job)
        self._link_rest(staged.tree, manifest, folder, notes.home)
        notes.built[staged.tree.name] = time.time_ns()
        _write(job, notes)
        return staged

    def _link_rest(self, tree: Path, manifest: Manifest, folder: Path, home: Iterable[str]) -> None:
        """Links for what is in the user's folder and does not ship."""
        if not folder.is_dir():
            return
        shipped = {entry.path for entry in manifest.entries}
        for path in [*unshipped(folder, self._own_folders(folder)), *home]:
            there, here = folder / path, tree / path
            if path in shipped or os.path.lexists(here) or not there.exists():
                continue
            here.parent.mkdir(parents=True, exist_ok=True)
            here.symlink_to(there)

    def bring_home(self, job: JobFolder, folder: Path) -> list[str]:
        """Moves what the program wrote in its tree into the user's folder. Returns what could not go there, with
        its place in the job's output folder instead: a name that is taken at home stays as it is.
        """
        tree, notes = current(job.code), _read(job)
        if tree is None or tree.name not in notes.built:
            return []
        manifest = self.manifest(tree.name.rpartition("-")[0])
        found = list(_written(tree, manifest, notes.built[tree.name]))
        if not folder.is_dir():
            folder = job.output / _STAYED  # moved away or deleted meanwhile
        stayed = []
        for path in found:
            stayed += _move(tree / path, folder / path, job.output / _STAYED / path)
            if (folder / path).exists() and path not in notes.home:
                notes.home.append(path)
        notes.built[tree.name] = time.time_ns()
        _write(job, notes)
        self._link_rest(tree, manifest, folder, notes.home)
        return stayed

    def drop_old_trees(self, job: JobFolder) -> None:
        """Keeps the tree that counts."""
        now = current(job.code)
        for tree in (job.code / "trees").glob("*"):
            if tree != now:
                shutil.rmtree(tree, ignore_errors=True)

    # ---- forgetting

    def prune(self, needed: Iterable[str]) -> int:
        """Forgets every snapshot but these, and what only they held. Returns how many went."""
        if not self._root.is_dir():
            return 0
        with self._locked(fcntl.LOCK_EX):
            wanted, gone = set(needed), 0
            for file in (self._root / "snapshots").glob("*"):
                if file.name not in wanted:
                    file.unlink(missing_ok=True)
                    gone += 1
            if gone:
                used = {name for id in wanted if (self._root / "snapshots" / id).exists() for name in self._blobs(id)}
                for file in (self._root / "blobs").iterdir():
                    if file.name not in used:
                        file.unlink(missing_ok=True)
            return gone

    def _blobs(self, id: str) -> Iterable[str]:
        return self.manifest(id).blobs()

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        self._root.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, how)
            yield
        finally:
            os.close(handle)


def unshipped(folder: Path, skip: frozenset[str] = frozenset()) -> list[str]:
    """What a folder holds that does not ship, but for caches."""
    left = (one.path.rstrip("/") for one in walk(folder, skip=skip).left)
    return [path for path in left if path not in skip and not _is_cache(path.rpartition("/")[2])]


def _is_cache(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in _NEVER_LINKED)


def _written(tree: Path, manifest: Manifest, built: int) -> Iterator[str]:
    """What is new or changed in a tree since it stood, each folder that is new as a whole."""
    shipped = {entry.path: entry for entry in manifest.entries}
    folders = {path for entry in shipped for path in _above(entry)}
    folders |= {path for path, entry in shipped.items() if entry.mode == "folder"}

    def look(at: Path, prefix: str) -> Iterator[str]:
        with os.scandir(at) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                path, about = prefix + entry.name, entry.stat(follow_symlinks=False)
                if _is_cache(entry.name):
                    continue
                if stat.S_ISDIR(about.st_mode) and path in folders:
                    yield from look(Path(entry.path), f"{path}/")
                elif path in shipped:
                    if stat.S_ISREG(about.st_mode) and about.st_ctime_ns > built:
                        yield path
                elif not (stat.S_ISLNK(about.st_mode) and Path(entry.path).readlink().is_absolute()):
                    yield path

    yield from look(tree, "")


def _above(path: str) -> Iterator[str]:
    while (slash := path.rfind("/")) >= 0:
        path = path[:slash]
        yield path


def _move(here: Path, home: Path, otherwise: Path) -> list[str]:
    """Moves one thing home, or to `otherwise` where its name is taken; a folder that is there is filled up."""
    if here.is_dir() and not here.is_symlink():
        for cache in [path for path in here.rglob("__pycache__") if path.is_dir()]:
            shutil.rmtree(cache, ignore_errors=True)
        if home.is_dir():
            stayed = [
                told for one in sorted(here.iterdir()) for told in _move(one, home / one.name, otherwise / one.name)
            ]
            shutil.rmtree(here, ignore_errors=True)
            return stayed
    if not os.path.lexists(home):
        home.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(here, home)
        return []
    otherwise.parent.mkdir(parents=True, exist_ok=True)
    if otherwise.is_dir() and not otherwise.is_symlink():
        shutil.rmtree(otherwise)
    if here.is_file():
        shutil.copy2(here, otherwise)  # a copy: the file may be one that the program needs again
    else:
        shutil.move(here, otherwise)
    return [str(otherwise)]


def _read(job: JobFolder) -> _Notes:
    try:
        return msgspec.json.decode((job.code / "notes.json").read_bytes(), type=_Notes)
    except (OSError, msgspec.MsgspecError):
        return _Notes()


def _write(job: JobFolder, notes: _Notes) -> None:
    draft = job.code / ".notes.json"
    draft.write_bytes(msgspec.json.encode(notes))
    draft.replace(job.code / "notes.json")
