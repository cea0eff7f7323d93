"""From a stream of bytes to log lines."""

from __future__ import annotations

LINE_LIMIT = 64 * 1024
_BAR_SECONDS = 30.0


class LineSplitter:
    r"""Splits one stream into lines, as a terminal would have shown them in the end.

    A carriage return starts the line again, so a progress bar becomes its last state; one that is drawn for long is
    shown every 30 seconds. Lines are cut at 64 KiB, with a note of what is missing.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        """An empty line, no bar."""
        self._limit = limit
        self._line = bytearray()
        self._dropped = 0
        self._returned = False  # a \r was read: what follows on this line replaces it
        self._is_bar = False
        self._bar_shown = 0.0

    def feed(self, data: bytes, now: float) -> list[str]:
        """The lines that `data` completes."""
        lines: list[str] = []
        pieces = data.split(b"\n")
        for piece in pieces[:-1]:
            self._draw(piece, now, lines)
            self._end_line(lines)
        self._draw(pieces[-1], now, lines)
        return lines

    def flush(self) -> list[str]:
        """What is left when the stream ends in the middle of a line."""
        lines: list[str] = []
        if self._line:
            self._end_line(lines)
        return lines

    def _draw(self, piece: bytes, now: float, lines: list[str]) -> None:
        segments = piece.split(b"\r")
        self._append(segments[0], now, lines)
        for segment in segments[1:]:
            if not self._is_bar:
                self._is_bar, self._bar_shown = True, now
            self._returned = True
            self._append(segment, now, lines)

    def _append(self, text: bytes, now: float, lines: list[str]) -> None:
        if not text:
            return
        if self._returned:
            if now - self._bar_shown >= _BAR_SECONDS and self._line.strip():
                lines.append(self._text())
                self._bar_shown = now
            self._line.clear()
            self._dropped, self._returned = 0, False
        room = self._limit - len(self._line)
        self._line += text[:room]
        self._dropped += max(0, len(text) - room)

    def _end_line(self, lines: list[str]) -> None:
        erased = self._is_bar and self._line and not self._line.strip()
        if not erased:
            lines.append(self._text())
        self._line.clear()
        self._dropped, self._returned, self._is_bar = 0, False, False

    def _text(self) -> str:
        text = self._line.decode("utf-8", "replace")
        return f"{text} … [{self._dropped} bytes cut]" if self._dropped else text
