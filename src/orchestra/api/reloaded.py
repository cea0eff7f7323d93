"""What became of new code for a running job: the same words on every engine."""

from __future__ import annotations

from orchestra.api.base import Model


class Reloaded(Model, kw_only=True):
    """What became of it."""

    generation: int
    state: str
    """`reloaded`, `refused` (nobody changed), `restarted` (all workers started anew), `stored` (for its
    next start) or `preloaded`."""
    message: str = ""
    seconds: dict[str, float] = {}
    """Of each phase, in order."""
    step: int | None = None
    """The step that all ranks stopped at."""
    saved: bool = False
    cold: dict[str, str] = {}
    """Ranks whose successor could not be preloaded, with the reason."""
    late: list[str] = []
    """Workers that did not answer, or said no."""

    @property
    def total(self) -> float:
        """All phases together."""
        return sum(self.seconds.values())

    @property
    def changed(self) -> bool:
        """Whether the job runs on the new code."""
        return self.state in ("reloaded", "restarted")

    @property
    def told(self) -> tuple[str, str]:
        """As an event: a reason and a message."""
        if self.state != "reloaded":
            return ("Reloading" if self.changed else "ReloadRefused"), self.message
        at = f" at step {self.step}" if self.step is not None else ""
        return "Reloaded", f"generation {self.generation} in all workers{at}, {self.total:.1f} s"
