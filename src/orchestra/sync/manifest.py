"""The manifest of a snapshot: path, mode and content of everything in it. Its hash is the snapshot's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from orchestra.api.problem import Invalid, Problem
from orchestra.sync.hashing import hash_of, is_hash
from orchestra.sync.paths import Twins, escapes, what_is_wrong_with_path

VERSION = 1
_TOLD = 20

Mode = Literal["file", "program", "link", "folder"]
"""Nothing else travels: no owner, no time, no setuid. A program is a file that may be executed."""


class Entry(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """One path. `content` is the hash of a file or program, the target of a link, nothing for an empty folder."""

    path: str
    mode: Mode
    content: str = ""
    size: int = 0

    @property
    def has_blob(self) -> bool:
        """Whether its content is kept as a blob."""
        return self.mode in ("file", "program")


class Manifest(msgspec.Struct, frozen=True):
    """All entries, sorted by path. Folders are implied by what they hold; only empty ones are entries."""

    entries: tuple[Entry, ...]
    version: int = VERSION

    def encode(self) -> bytes:
        """The bytes that are hashed: the same tree gives the same bytes on every machine."""
        return msgspec.json.encode(self)

    @property
    def id(self) -> str:
        """The snapshot's name. Computed each time; keep it."""
        return hash_of(self.encode())

    @property
    def files(self) -> int:
        """How many files it holds."""
        return sum(entry.has_blob for entry in self.entries)

    @property
    def bytes(self) -> int:
        """How large the tree is."""
        return sum(entry.size for entry in self.entries)

    def blobs(self) -> dict[str, int]:
        """Every content once, with its size."""
        return {entry.content: entry.size for entry in self.entries if entry.has_blob}


def decode(data: bytes, id: str) -> Manifest:
    """A manifest from elsewhere: it must have the hash it is called by, and be harmless. `Invalid` otherwise."""
    if hash_of(data) != id:
        raise Invalid([Problem(id, "the manifest is not the one of that name: its hash is another")])
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise Invalid([Problem(id, f"this is no manifest: {error}")]) from error
    problems = what_is_wrong(manifest)
    if problems:
        raise Invalid(problems)
    return manifest


def what_is_wrong(manifest: Manifest) -> list[Problem]:
    """Everything that makes a manifest unfit to become a tree; trusts nothing in it."""
    if manifest.version != VERSION:
        return [Problem("version", f"{manifest.version} is not known here", "update orchestra")]
    problems: list[Problem] = []
    twins, kinds = Twins(), {entry.path: entry.mode for entry in manifest.entries}
    links = {entry.path: entry.content for entry in manifest.entries if entry.mode == "link"}
    if [entry.path for entry in manifest.entries] != sorted(kinds):
        problems.append(Problem("entries", "they are not sorted, or a path is there twice"))
    seen_folders: set[str] = set()
    for entry in manifest.entries:
        wrong = _what_is_wrong_with(entry, twins, kinds, seen_folders)
        wrong = wrong or (escapes(entry.path, links) if entry.mode == "link" else None)
        if wrong:
            problems.append(Problem(ascii(entry.path)[1:-1], wrong))
        if len(problems) >= _TOLD:
            break
    return problems


def _what_is_wrong_with(entry: Entry, twins: Twins, kinds: dict[str, Mode], seen_folders: set[str]) -> str | None:
    wrong = what_is_wrong_with_path(entry.path) or twins.add(entry.path)
    if wrong:
        return wrong
    if entry.has_blob and not is_hash(entry.content):
        return "its content is not named by a hash"
    if entry.size < 0 or (entry.size and not entry.has_blob) or (entry.mode == "folder" and entry.content):
        return "its size or content does not fit what it is"
    folder = entry.path
    while (slash := folder.rfind("/")) >= 0:
        folder = folder[:slash]
        if folder in seen_folders:
            return None
        seen_folders.add(folder)
        if folder in kinds:
            return f"it lies in {folder}, which is a {kinds[folder]}"
        wrong = twins.add(folder)
        if wrong:
            return wrong
    return None


@dataclass(frozen=True)
class Changes:
    """What differs between two snapshots, by path."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def touched(self) -> frozenset[str]:
        """Every path that differs."""
        return frozenset((*self.added, *self.removed, *self.changed))

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def changes(old: Manifest, new: Manifest) -> Changes:
    """What `new` has added, removed or changed (content, mode, or target) since `old`."""
    before = {entry.path: entry for entry in old.entries}
    after = {entry.path: entry for entry in new.entries}
    return Changes(
        tuple(path for path in after if path not in before),
        tuple(path for path in before if path not in after),
        tuple(path for path, entry in after.items() if path in before and before[path] != entry),
    )
