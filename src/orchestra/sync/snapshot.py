"""A folder at one moment: what ships, what does not and why, under one name that is its content."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestra.api.problem import Invalid, Problem
from orchestra.api.quantity import Quantity
from orchestra.sync.commit import Commit, CommitLookup
from orchestra.sync.errors import Changed
from orchestra.sync.index import Index
from orchestra.sync.manifest import Changes, Entry, Manifest, changes
from orchestra.sync.paths import escapes
from orchestra.sync.reading import Tree
from orchestra.sync.walk import Found, Left, Walk, largest_folders, walk

__all__ = ["Changes", "Commit", "Left", "Limits", "Snapshot", "changes", "limits_of", "snapshot"]

_MIB = 1 << 20
_TRIES = 3


@dataclass(frozen=True)
class Limits:
    """How large a workspace may be. It holds code: data belongs into a volume or `sync.data`."""

    warn_bytes: int = 50 * _MIB
    warn_files: int = 5_000
    most_bytes: int = 512 * _MIB
    most_files: int = 50_000


def limits_of(environ: Mapping[str, str]) -> Limits:
    """The limits of a workspace, as the user has set them."""
    usual = Limits()

    def asked(name: str, otherwise: int) -> int:
        text = environ.get(name)
        if not text:
            return otherwise
        try:
            return Quantity(text).whole
        except ValueError as error:
            raise Invalid([Problem(name, f"{text!r} is no number", "write 2Gi, or 100000")]) from error

    return Limits(
        warn_bytes=asked("ORCHESTRA_WORKSPACE_WARN_BYTES", usual.warn_bytes),
        warn_files=asked("ORCHESTRA_WORKSPACE_WARN_FILES", usual.warn_files),
        most_bytes=asked("ORCHESTRA_WORKSPACE_MAX_BYTES", usual.most_bytes),
        most_files=asked("ORCHESTRA_WORKSPACE_MAX_FILES", usual.most_files),
    )


@dataclass(frozen=True)
class Snapshot:
    """What ships, and what does not."""

    folder: Path
    id: str
    manifest: Manifest
    left: tuple[Left, ...]
    """What stays home, each with the reason; a folder ends in a slash and stands for all in it."""
    left_count: int
    warnings: tuple[str, ...]
    commit: Commit | None
    """The git commit and whether the folder differs from it; None where there is no git."""

    @property
    def secrets(self) -> tuple[Left, ...]:
        """What stays home because it looks like a secret: to be said, always."""
        return tuple(left for left in self.left if left.secret)


def snapshot(
    folder: Path,
    *,
    named: Iterable[str] = (),
    limits: Limits | None = None,
    index: Index | None = None,
    skip: frozenset[str] = frozenset(),
) -> Snapshot:
    """Look at a folder and name its content. Changes nothing in it.

    Raises `Invalid` where it is too large or holds names that cannot travel, and `Changed` where files kept
    changing while they were read. `named` are relative paths that ship whatever the rules say, `skip` some that never
    do. Without `index`, the user's cache is used.
    """
    limits = limits or Limits()
    lookup = CommitLookup(folder)
    try:
        for attempt in range(1, _TRIES + 1):
            try:
                taken = _look(folder, tuple(named), limits, index or Index.of(folder), skip)
                break
            except Changed:
                if attempt == _TRIES:
                    raise
        commit = lookup.result()
    finally:
        lookup.close()
    walked, manifest = taken
    return Snapshot(
        folder,
        manifest.id,
        manifest,
        tuple(walked.left),
        walked.left_count,
        tuple(_warnings(walked, manifest, limits)),
        commit,
    )


def _look(
    folder: Path, named: tuple[str, ...], limits: Limits, index: Index, skip: frozenset[str]
) -> tuple[Walk, Manifest]:
    # Well beyond the limit, so that the folders that are to blame are known; not so far that it takes minutes.
    walked = walk(folder, named=named, at_most=4 * limits.most_files, skip=skip)
    _leave_escaping_links(walked)
    _refuse_if_too_large(walked, limits)
    if walked.problems:
        raise Invalid(walked.problems)
    with Tree(folder) as tree:
        entries = tuple(_entry(tree, found, index) for found in walked.found)
    index.save()
    return walked, Manifest(entries)


def _entry(tree: Tree, found: Found, index: Index) -> Entry:
    if found.kind == "file":
        digest = index.hash_of(found.path, found.stat, lambda: _hash(tree, found))
        return Entry(found.path, "program" if found.stat.st_mode & 0o100 else "file", digest, found.stat.st_size)
    return Entry(found.path, found.kind, found.target)


def _hash(tree: Tree, found: Found) -> tuple[str, os.stat_result]:
    digest, about = tree.hash(found.path)
    if about.st_size != found.stat.st_size:
        raise Changed(f"{found.path} changed while the folder was looked at")
    return digest, about


def _leave_escaping_links(walked: Walk) -> None:
    """Leave links that lead out of the folder. Without one, another may resolve differently: until none is left."""
    links = {found.path: found.target for found in walked.found if found.kind == "link"}
    while escaping := {path: reason for path in links if (reason := escapes(path, links))}:
        for path, reason in escaping.items():
            walked.leave(path, f"a link that would be broken there: {reason}")
            del links[path]
    walked.found = [found for found in walked.found if found.kind != "link" or found.path in links]
    walked.left.sort()


def _refuse_if_too_large(walked: Walk, limits: Limits) -> None:
    files, size = len(walked.found), sum(found.size for found in walked.found)
    if files > limits.most_files:
        more = "more than " if walked.stopped_early else ""
        top = [f"{folder}/ ({count:,} files)" for folder, count in largest_folders(walked.found, lambda _: 1)]
        _refuse(f"{more}{files:,} files are more than a workspace may have ({limits.most_files:,})", top)
    if size > limits.most_bytes:
        top = [f"{folder}/ ({_mib(count)})" for folder, count in largest_folders(walked.found, lambda f: f.size)]
        loose = sorted((f for f in walked.found if "/" not in f.path), key=lambda f: -f.size)
        top += [f"{f.path} ({_mib(f.size)})" for f in loose[: 10 - len(top)] if f.size > limits.most_bytes // 20]
        _refuse(f"{_mib(size)} are more than a workspace may have ({_mib(limits.most_bytes)})", top)


def _refuse(reason: str, largest: list[str]) -> None:
    named = f"; most of it is in {', '.join(largest)}" if largest else ""
    mend = "name what is not code in .torchrunignore, and bring data by a volume or sync.data"
    raise Invalid([Problem("workspace", reason + named, mend)])


def _warnings(walked: Walk, manifest: Manifest, limits: Limits) -> list[str]:
    warnings = []
    files, size = manifest.files, manifest.bytes
    if size > limits.warn_bytes or files > limits.warn_files:
        by_size = largest_folders(walked.found, lambda found: found.size if size > limits.warn_bytes else 1)
        named = ", ".join(f"{folder}/" for folder, _ in by_size)
        warnings.append(
            f"the workspace has {files:,} files and {_mib(size)}" + (f"; largest folders: {named}" if named else "")
        )
    for left in walked.left:
        if left.reason.startswith("a link that would be broken"):
            warnings.append(f"{left.path} does not ship: {left.reason}")
    return warnings


def _mib(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB"
