"""The line in front of a queue whose limits no scheduler keeps. Pure.

Highest priority first, then by arrival. The first that does not fit is the head: it gets the next room. Those behind
it may start before it only where that cannot delay it, whatever the running jobs do (docs/adr/0025).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestra.api.quantity import binary_quantity

UNLIMITED = -1
_MOST_SUMS = 20_000  # more different sums than this, and nobody overtakes: wrong is worse than slow
_NAMED = 3
_EXACT_PLACES = 10


class Amounts(NamedTuple):
    """Of each resource that a queue can bound. As a limit, -1 means none."""

    gpus: int = 0
    millicores: int = 0
    memory: int = 0
    """Bytes."""

    def __add__(self, other: tuple[int, ...]) -> Amounts:  # type: ignore[override]  # sums, and not a longer tuple
        return Amounts(*(one + more for one, more in zip(self, other, strict=True)))

    def within(self, limit: Amounts) -> bool:
        """Whether no limit is passed."""
        return all(most == UNLIMITED or one <= most for one, most in zip(self, limit, strict=True))


NO_LIMITS = Amounts(UNLIMITED, UNLIMITED, UNLIMITED)


@dataclass(frozen=True)
class Claim:
    """One unfinished job of a queue."""

    uid: str
    namespace: str
    name: str
    asks: Amounts
    holds: bool
    """It was let in and has not given its share back."""
    priority: int = 0
    arrival: str = ""
    """When it was created, as Kubernetes writes it."""

    @property
    def order(self) -> tuple[int, str, str, str]:
        """Where it stands in the line."""
        return -self.priority, self.arrival, self.namespace, self.name


@dataclass(frozen=True)
class Place:
    """What one job is told."""

    may_start: bool
    reason: str = ""
    message: str = ""
    look_again: float | None = None
    """Seconds; None where whoever keeps the line wakes the job."""


GO = Place(may_start=True)


def places(queue: str, limit: Amounts, claims: Iterable[Claim]) -> dict[str, Place]:
    """What each job is told, by UID. Who holds a share keeps it, also above a limit that was lowered."""
    everyone = sorted(claims, key=lambda claim: claim.order)
    holders = [claim for claim in everyone if claim.holds]
    waiting = [claim for claim in everyone if not claim.holds]
    possible = [claim for claim in waiting if claim.asks.within(limit)]
    granted, used = _grant(limit, holders, possible)
    told = {claim.uid: GO for claim in (*holders, *granted)}
    let_in = {claim.uid for claim in granted}
    left = [claim for claim in possible if claim.uid not in let_in]
    for number, claim in enumerate(left, start=1):
        told[claim.uid] = Place(False, "QueueLimit", _waits(queue, limit, used, claim, number, left))
    for claim in waiting:
        if claim.uid not in told:
            told[claim.uid] = Place(False, "NeverFits", _never(queue, limit, claim))
    return told


def _grant(limit: Amounts, holders: Sequence[Claim], line: Sequence[Claim]) -> tuple[list[Claim], Amounts]:
    """Who of the line may start now, and what is in use then."""
    used = Amounts()
    for claim in holders:
        used += claim.asks
    granted: list[Claim] = []
    room: _Room | None = None
    for claim in line:
        if not (used + claim.asks).within(limit) or (room is not None and not room.spares(claim.asks)):
            if room is None:
                room = _Room(limit, claim, [one.asks for one in (*holders, *granted)])
            continue
        granted.append(claim)
        used += claim.asks
        if room is not None:
            room.taken(claim.asks)
    return granted, used


class _Room:
    """What those behind the head may take.

    The head starts as soon as those that are left leave it room. Whichever of them that will be: a job that overtakes
    must fit beside them and the head. So, for each resource, it may take what is missing between the room beside the
    head and the largest sum of running jobs that would be let stay there.
    """

    def __init__(self, limit: Amounts, head: Claim, holding: Sequence[Amounts]) -> None:
        pairs = zip(limit, head.asks, strict=True)
        self._beside = [UNLIMITED if most == UNLIMITED else most - ask for most, ask in pairs]
        self._sums: list[set[int]] = [{0} for _ in self._beside]
        for asks in holding:
            self.taken(asks)

    def spares(self, asks: Amounts) -> bool:
        """Whether a job that takes this cannot delay the head."""
        for beside, sums, ask in zip(self._beside, self._sums, asks, strict=True):
            if beside == UNLIMITED or ask == 0:
                continue
            if not sums or ask > beside - max(sums):
                return False
        return True

    def taken(self, asks: Amounts) -> None:
        """One more holds a share."""
        for index, (beside, ask) in enumerate(zip(self._beside, asks, strict=True)):
            sums = self._sums[index]
            if beside == UNLIMITED or ask == 0 or not sums:
                continue
            sums |= {one + ask for one in sums if one + ask <= beside}
            if len(sums) > _MOST_SUMS:
                sums.clear()


# ---- words


def _waits(queue: str, limit: Amounts, used: Amounts, claim: Claim, number: int, line: Sequence[Claim]) -> str:
    """Exact for the first few. The others would be told anew with every step of the line: they hear round numbers."""
    wants = f"wants {_words(claim.asks, limit)}"
    if number > _EXACT_PLACES + 1:
        return f"in the line of queue {queue}: {wants}; more than {_rounded(number - 1)} jobs are ahead"
    used_words = f"{_usage(used, limit)} are in use"
    if number == 1:
        return f"first in the line of queue {queue}: {wants}, {used_words}"
    ahead = name_some((named(one, claim.namespace) for one in line[: number - 1]), _NAMED)
    return f"number {number} in the line of queue {queue}: {wants}, {used_words}; ahead: {ahead}"


def _never(queue: str, limit: Amounts, claim: Claim) -> str:
    over = Amounts(*(most if ask > most else UNLIMITED for ask, most in zip(claim.asks, limit, strict=True)))
    return (
        f"can never fit: wants {_words(claim.asks, over)} and queue {queue} lets its jobs use "
        f"{_words(over, over)} at most; ask for less, or have resources.limit of the queue raised"
    )


def _words(amounts: Amounts, limit: Amounts) -> str:
    """The bounded resources only."""
    words = (word(one) for word, one, most in zip(_UNITS, amounts, limit, strict=True) if most != UNLIMITED)
    return ", ".join(words)


def _usage(used: Amounts, limit: Amounts) -> str:
    triples = zip(_UNITS, used, limit, strict=True)
    return ", ".join(f"{_bare(word(one))} of {word(most)}" for word, one, most in triples if most != UNLIMITED)


def _bare(words: str) -> str:
    return words.split(" ", 1)[0]


_UNITS: tuple[Callable[[int], str], ...] = (
    lambda gpus: f"{gpus} GPUs",
    lambda millicores: f"{millicores / 1000:g} CPUs",
    lambda memory: f"{binary_quantity(memory)} memory",
)


def _rounded(number: int) -> int:
    """What it is more than, in one figure: 17 -> 10, 342 -> 300."""
    below = number - 1
    step = 10 ** (len(str(below)) - 1)
    return int(below // step * step)


def named(claim: Claim, beside: str) -> str:
    """A job, as somebody of a namespace would call it."""
    return claim.name if claim.namespace == beside else f"{claim.namespace}/{claim.name}"


def name_some(names: Iterable[str], most: int) -> str:
    """`a, b and 3 more`."""
    every = list(names)
    shown, rest = every[:most], len(every) - most
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")
