"""One line that says what takes so long."""

import sys
import time
from typing import TextIO


class Progress:
    """A line updated in place on a terminal; elsewhere (a CI log) a plain line every half minute."""

    def __init__(self, stream: TextIO | None = None, *, plain_every: float = 30.0) -> None:
        self._stream = stream or sys.stderr
        self._in_place = self._stream.isatty()
        self._plain_every = plain_every
        self._text = ""
        self._since = 0.0
        self._said = 0.0
        self._line_is_open = False

    def update(self, text: str) -> None:
        """Say what is going on; call it about once a second. The elapsed time counts from the first such
        text.
        """
        now = time.monotonic()
        is_new = text != self._text
        if is_new:
            self._text, self._since = text, now
        elapsed = now - self._since
        if self._in_place:
            self._stream.write(f"\r\x1b[2K{text}, {elapsed:.0f} s")
            self._stream.flush()
            self._line_is_open = True
        elif is_new or now - self._said >= self._plain_every:
            self._said = now
            print(text if is_new else f"{text}, {elapsed:.0f} s so far", file=self._stream, flush=True)

    def done(self, text: str) -> None:
        """Close the line with its result."""
        self._stream.write(f"\r\x1b[2K{text}\n" if self._line_is_open else f"{text}\n")
        self._stream.flush()
        self._line_is_open = False
        self._text = ""
