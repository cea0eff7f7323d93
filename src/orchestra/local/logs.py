"""The job's log: lines of all nodes and attempts, in the order of their time, followed across restarts."""

from __future__ import annotations

import heapq
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestra.api.engine import LogLine, LogQuery
from orchestra.local.home import JobFolder

_LINE = re.compile(r"^(\d+(?:\.\d+)?) (\S+) (.*)$")
_ROTATED = re.compile(r"^attempt-(\d+)\.log(?:\.(\d+))?$")
_TICK = 0.1


def read_logs(folder: JobFolder, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine]:
    """The lines that a query asks for. With `follow`, until `ended` and everything is read."""
    wanted = _filter(query)
    reader = _Reader()
    past = heapq.merge(*(reader.fresh(path) for path in _files(folder, query.role)), key=lambda line: line.time)
    chosen: Iterator[LogLine] = filter(wanted, past)
    if query.tail is not None:
        chosen = iter(deque(chosen, maxlen=query.tail))
    yield from chosen
    while query.follow:
        over = ended()  # asked before reading: nothing that was written before the end is missed
        fresh = [line for path in _files(folder, query.role) for line in reader.fresh(path)]
        yield from filter(wanted, sorted(fresh, key=lambda line: line.time))
        if over:
            return
        time.sleep(_TICK)


def _filter(query: LogQuery) -> Callable[[LogLine], bool]:
    pattern = re.compile(query.grep) if query.grep else None

    def wanted(line: LogLine) -> bool:
        return (
            (query.ranks is None or line.rank in query.ranks)
            and (query.since is None or line.time >= query.since)
            and (pattern is None or pattern.search(line.text) is not None)
        )

    return wanted


def _files(folder: JobFolder, role: str | None) -> list[Path]:
    """Log files, oldest first within a node: `attempt-1.log.2`, `attempt-1.log.1`, `attempt-1.log`."""
    nodes = {None: "*", "master": "0", "worker": "[!0]*"}[role]
    found = []
    for path in folder.root.glob(f"nodes/{nodes}/logs/attempt-*.log*"):
        match = _ROTATED.match(path.name)
        if match:
            found.append((int(match[1]), -int(match[2] or 0), path))
    return [path for _, _, path in sorted(found, key=lambda item: (str(item[2].parent), item[0], item[1]))]


class _Reader:
    """Reads files from where they were left. A file is known by its inode: rotation only renames it."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[int, bytes]] = {}
        """By inode: how far it was read, and the begun line at its end."""

    def fresh(self, path: Path) -> Iterator[LogLine]:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return
        with file:
            inode = os.fstat(file.fileno()).st_ino
            offset, rest = self._left.get(inode, (0, b""))
            file.seek(offset)
            while block := file.read(1 << 20):
                offset += len(block)
                *lines, rest = (rest + block).split(b"\n")
                self._left[inode] = (offset, rest)
                for line in lines:
                    parsed = _parse(line)
                    if parsed is not None:
                        yield parsed


def _parse(line: bytes) -> LogLine | None:
    match = _LINE.match(line.decode("utf-8", "replace"))
    return LogLine(float(match[1]), match[2], match[3]) if match else None
