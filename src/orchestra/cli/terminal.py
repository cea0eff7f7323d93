"""Colours, widths and times, as the terminal allows."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

_CODES = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "grey": 90, "bold": 1}
_RANKS = ("cyan", "magenta", "blue", "yellow", "green")
_PHASES = {
    "Succeeded": "green", "Running": "cyan", "Failed": "red", "Suspended": "yellow", "Queued": "yellow",
    "Pending": "grey", "Provisioning": "grey", "Syncing": "grey",
}  # fmt: skip
_BARS = "▁▂▃▄▅▆▇█"


def is_terminal(stream: TextIO) -> bool:
    """Whether a person is looking."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def colours_wanted(choice: str = "auto") -> bool:
    """`--color`, then NO_COLOR, then whether a person is looking."""
    if choice != "auto":
        return choice == "always"
    return "NO_COLOR" not in os.environ and is_terminal(sys.stdout)


class Paint:
    """Text in colours, or plain text."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def __call__(self, text: str, colour: str) -> str:
        """`text` in a colour."""
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self.on and colour in _CODES else text

    def phase(self, phase: str | None) -> str:
        """A phase in its colour."""
        return self(phase or "-", _PHASES.get(phase or "", "grey"))

    def source(self, source: str) -> str:
        """The tag of a rank in that rank's colour."""
        digits = source[1:]
        colour = _RANKS[int(digits) % len(_RANKS)] if source[:1] == "r" and digits.isdigit() else "grey"
        return self(f"[{source}]", colour)


def width() -> int:
    """Columns of the terminal."""
    return shutil.get_terminal_size((100, 24)).columns


def age(seconds: float | None) -> str:
    """`3s`, `5m`, `2h`, `4d`, as kubectl writes it."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= 2 * size:
            return f"{whole // size}{letter}"
    return f"{whole}s"


def clock(seconds: float) -> str:
    """The local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def bar(share: float, columns: int = 24) -> str:
    """A progress bar."""
    full = round(max(0.0, min(1.0, share)) * columns)
    return "█" * full + "░" * (columns - full)


def sparkline(values: list[float]) -> str:
    """A small curve."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1))] for value in values)


def table(rows: list[list[str]], headers: list[str], *, show_headers: bool = True) -> str:
    """Columns, as kubectl prints them. Colours do not count for the width."""
    lines = ([headers] if show_headers else []) + rows
    widths = [max((len(_plain(line[i])) for line in lines), default=0) for i in range(len(headers))]
    out = []
    for line in lines:
        cells = [cell + " " * (widths[i] - len(_plain(cell))) for i, cell in enumerate(line)]
        out.append("   ".join(cells).rstrip())
    return "\n".join(out)


def _plain(text: str) -> str:
    while "\x1b[" in text:
        start = text.index("\x1b[")
        text = text[:start] + text[text.index("m", start) + 1 :]
    return text
