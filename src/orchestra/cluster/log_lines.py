"""Lines of a container's log as the kubelet gives them: a time stamp, the agent's tag, the text."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable

from orchestra.api.engine import LogLine, LogQuery

_STAMPED = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d) ?(.*)$", re.DOTALL)
_TAGGED = re.compile(r"^\[([a-z][a-z0-9-]*)\] ?(.*)$", re.DOTALL)
UNTAGGED = "setup"
"""Whoever speaks before the agent does: the shell that starts it, say."""


class Place:
    """How far a log was read. Reopened a second earlier (the server knows no finer), it passes over what is known."""

    def __init__(self) -> None:
        self.stamp = ""
        """Of the last line that was given out, in nanoseconds."""
        self._same = 0
        self._skip = 0

    def reopened(self) -> None:
        """The log is being read again from the second of the last line."""
        self._skip = self._same

    @property
    def second(self) -> str:
        """Where to reopen; empty for the beginning."""
        return f"{self.stamp.partition('.')[0]}Z" if self.stamp else ""

    def is_new(self, stamp: str) -> bool:
        """Whether a line with this stamp was not given out yet."""
        if stamp < self.stamp:
            return False
        if stamp > self.stamp:
            self.stamp, self._same, self._skip = stamp, 1, 0
            return True
        if self._skip > 0:
            self._skip -= 1
            return False
        self._same += 1
        return True


def read_line(raw: bytes, place: Place) -> LogLine | None:
    """One line; None for one that is known, or that no kubelet wrote."""
    match = _STAMPED.match(raw.decode("utf-8", "replace"))
    if match is None:
        return None
    second, fraction, zone, rest = match[1], (match[2] or "").ljust(9, "0")[:9], match[3], match[4]
    if zone != "Z":
        moved = datetime.datetime.fromisoformat(second + zone).astimezone(datetime.UTC)
        second = moved.strftime("%Y-%m-%dT%H:%M:%S")
    if not place.is_new(f"{second}.{fraction}"):
        return None
    time = datetime.datetime.fromisoformat(f"{second}+00:00").timestamp() + int(fraction) / 1e9
    tagged = _TAGGED.match(rest)
    return LogLine(time, tagged[1], tagged[2]) if tagged else LogLine(time, UNTAGGED, rest)


def wanted(query: LogQuery) -> Callable[[LogLine], bool]:
    """Whether a query asks for a line."""
    pattern = re.compile(query.grep) if query.grep else None

    def is_wanted(line: LogLine) -> bool:
        return (
            (query.ranks is None or line.rank in query.ranks)
            and (query.since is None or line.time >= query.since)
            and (pattern is None or pattern.search(line.text) is not None)
        )

    return is_wanted
