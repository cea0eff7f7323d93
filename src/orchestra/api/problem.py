"""What is wrong with a user's input: where, why, and what would be right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Place:
    """A position in a file, counted from 1 as editors do."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Problem:
    """One mistake. `path` is the field as a user writes it (`spec.numGPUs`), empty for a whole document."""

    path: str
    reason: str
    mend: str = ""
    place: Place | None = None

    def at(self, place: Place) -> Problem:
        """The same problem, with the place where a reader finds it."""
        return Problem(self.path, self.reason, self.mend, place)

    @property
    def words(self) -> str:
        """Reason and mend in one sentence, the same words on every surface."""
        return f"{self.reason}; {self.mend}" if self.mend else self.reason

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.place or ""), self.path, self.words) if part)


class Invalid(Exception):
    """Raised with every problem found, never with only the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
