"""How a cluster that starts tells people where it is."""

import sys
import time
from collections.abc import Callable

Say = Callable[[str], None]


def silent(_step: str) -> None:
    """Say nothing."""


def on_stderr() -> Say:
    """Print each step on stderr with the seconds since now; stdout stays free for what programs read."""
    begin = time.monotonic()

    def say(step: str) -> None:
        print(f"[{time.monotonic() - begin:4.1f} s] {step}", file=sys.stderr, flush=True)

    return say
