"""What `doctor` finds: one line a thing that jobs need, and the command that mends it."""

from __future__ import annotations

from typing import Literal

from orchestra.api.base import Model


class Finding(Model):
    """One thing that was looked at."""

    about: str
    """What it is about, in a word or two."""
    state: Literal["ok", "missing", "warning", "unknown"]
    """`missing`: jobs will not run. `warning`: some will not. `unknown`: we may not look."""
    message: str
    mend: str = ""
    """The command, or the sentence, that mends it."""
