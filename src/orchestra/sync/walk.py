"""A folder as it may be shipped: files, folders and links that stay inside. No link is ever followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orchestra.api.problem import Invalid, Problem
from orchestra.sync.ignore import GITIGNORE, OWN, Reason, Scope
from orchestra.sync.paths import Twins, what_is_wrong_with_name

_RULES_AT_MOST = 1 << 20
_TOLD_AT_MOST = 10_000
_DEEPEST = 100
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that ships. `stat` is of the thing itself, never of what a link points to."""

    path: str
    kind: Literal["file", "link", "folder"]
    stat: os.stat_result
    target: str = ""

    @property
    def size(self) -> int:
        """Bytes of content."""
        return self.stat.st_size if self.kind == "file" else 0


@dataclass(frozen=True, order=True)
class Left:
    """One thing that does not ship, and why. A folder ends in a slash and stands for everything in it."""

    path: str
    reason: str
    secret: bool = False


@dataclass
class Walk:
    """What a folder holds."""

    found: list[Found] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    left_count: int = 0
    """All that was left, also what is no longer listed in `left` because it would be too long to read."""
    problems: list[Problem] = field(default_factory=list)
    stopped_early: bool = False

    def leave(self, path: str, reason: str, *, secret: bool = False) -> None:
        """Note what does not ship."""
        self.left_count += 1
        if secret or len(self.left) < _TOLD_AT_MOST:
            self.left.append(Left(path, reason, secret))


def walk(
    folder: Path, *, named: Iterable[str] = (), at_most: int | None = None, skip: frozenset[str] = frozenset()
) -> Walk:
    """Look at a whole folder; reads no content but rules and links.

    `named` are relative paths that ship whatever the rules say, `skip` some that never do. Stops after `at_most`
    files. Names that cannot exist on every system come back as problems. An empty folder is found as such;
    others by what they hold.
    """
    result = Walk()
    try:
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Invalid([Problem(str(folder), f"cannot be read: {error.strerror}")]) from error
    try:
        _Walker(result, Twins(), at_most, skip).visit(root, "", Scope(frozenset(named)), None)
    finally:
        os.close(root)
    result.found.sort(key=lambda found: found.path)
    result.left.sort()
    return result


class _Walker:
    def __init__(self, result: Walk, twins: Twins, at_most: int | None, skip: frozenset[str]) -> None:
        self._skip = skip
        self._result = result
        self._twins = twins
        self._at_most = at_most

    def visit(self, handle: int, folder: str, outer: Scope, above: Reason | None) -> int:
        """Look at one folder, open as `handle`; returns how much of it ships."""
        with os.scandir(handle) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        names = {entry.name for entry in entries}
        scope = outer.enter(
            folder,
            _text(handle, GITIGNORE) if GITIGNORE in names else None,
            _text(handle, OWN) if OWN in names else None,
            above,
        )
        ships = 0
        for entry in entries:
            if self._at_most is not None and len(self._result.found) >= self._at_most:
                self._result.stopped_early = True
                break
            try:
                ships += self._look_at(handle, entry, scope)
            except FileNotFoundError:
                continue  # gone since it was listed: as if it had never been there
            except PermissionError as error:
                reason = f"cannot be read: {error.strerror}"
                self._result.problems.append(Problem(scope.folder + entry.name, reason, f"or name it in {OWN}"))
        return ships

    def _look_at(self, handle: int, entry: os.DirEntry[str], scope: Scope) -> int:
        name, path = entry.name, scope.folder + entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if path in self._skip:
            self._result.leave(_shown(path) + ("/" if is_folder else ""), "Orchestra's own folder")
            return 0
        reason = scope.why_not(name, is_folder=is_folder)
        if reason is not None and not (is_folder and scope.is_opened(name)):
            self._result.leave(_shown(path) + ("/" if is_folder else ""), reason.words, secret=reason.secret)
            return 0
        about = entry.stat(follow_symlinks=False)
        kind = stat.S_IFMT(about.st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            self._result.leave(_shown(path), f"{_KINDS.get(kind, 'no file')}: only files, folders and links ship")
            return 0
        wrong = what_is_wrong_with_name(name) or self._twins.add(path)
        if wrong:
            self._result.problems.append(Problem(_shown(path), wrong, f"rename it, or name it in {OWN}"))
            return 0
        if is_folder:
            return self._enter(handle, name, path, about, scope, reason)
        if kind == stat.S_IFLNK:
            self._result.found.append(Found(path, "link", about, os.readlink(name, dir_fd=handle)))
        else:
            self._result.found.append(Found(path, "file", about))
        return 1

    def _enter(
        self, handle: int, name: str, path: str, about: os.stat_result, scope: Scope, above: Reason | None
    ) -> int:
        if path.count("/") >= _DEEPEST:
            self._result.problems.append(Problem(path, f"folders are nested more than {_DEEPEST} deep"))
            return 0
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
        try:
            ships = self.visit(inner, path, scope, above)
        finally:
            os.close(inner)
        if ships == 0 and above is None:
            self._result.found.append(Found(path, "folder", about))
            return 1
        return ships


def _text(handle: int, name: str) -> str | None:
    """A file of rules; a link in its place is no file of rules, as in git."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return file.read(_RULES_AT_MOST).decode("utf-8", "surrogateescape").removeprefix("\ufeff")


def _shown(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()


def largest_folders(found: Iterable[Found], weigh: Callable[[Found], int], count: int = 10) -> list[tuple[str, int]]:
    """The folders that hold the most, each with what lies directly in it or below, largest first."""
    sums: dict[str, int] = {}
    for one in found:
        for parent in _parents(one.path):
            sums[parent] = sums.get(parent, 0) + weigh(one)
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:count]


def _parents(path: str) -> Iterator[str]:
    while (slash := path.rfind("/")) >= 0:
        path = path[:slash]
        yield path
