"""Who may run now: slots are given in the order in which jobs began to wait. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestra.plan import Plan


@dataclass(frozen=True)
class Need:
    """What a job takes from the machine."""

    gpus: int
    cores: int


@dataclass(frozen=True)
class Claim:
    """A job that holds slots or waits for them."""

    uid: str
    name: str
    need: Need
    gpus: tuple[int, ...] | None
    """The GPUs it holds; None while it waits."""


@dataclass(frozen=True)
class Grant:
    """The slots are yours."""

    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Wait:
    """Not yet: behind whom, and what is free."""

    ahead: tuple[str, ...]
    """Names of the jobs that must move first: those that run, or those that came before."""
    place: int
    """Place in the line, from 1."""
    free_gpus: int
    free_cores: int


def need_of(plan: Plan, cores: int) -> Need:
    """A GPU job takes its GPUs. A CPU job takes a core a process; more processes than cores share them."""
    if plan.gpus_per_node:
        return Need(plan.node_count * plan.gpus_per_node, 0)
    return Need(0, min(plan.world_size, cores))


def judge(uid: str, claims: list[Claim], gpus: tuple[int, ...], cores: int) -> Grant | Wait:
    """Whether a waiting job may start. `claims` are all jobs, in the order in which they began to wait.

    First come, first served: nobody overtakes the head of the line, so a large job is never starved by small ones.
    """
    holding = [claim for claim in claims if claim.gpus is not None]
    waiting = [claim for claim in claims if claim.gpus is None]
    mine = next(claim for claim in waiting if claim.uid == uid)
    taken = {index for claim in holding for index in claim.gpus or ()}
    free = tuple(index for index in gpus if index not in taken)
    free_cores = cores - sum(claim.need.cores for claim in holding)
    place = waiting.index(mine) + 1
    if place == 1 and mine.need.gpus <= len(free) and mine.need.cores <= free_cores:
        return Grant(free[: mine.need.gpus])
    before = [claim.name for claim in waiting[: place - 1]]
    blocking = [claim.name for claim in holding if _shares(claim.need, mine.need)]
    return Wait((*blocking, *before), place, len(free), max(free_cores, 0))


def _shares(one: Need, other: Need) -> bool:
    return (one.gpus > 0 and other.gpus > 0) or (one.cores > 0 and other.cores > 0)
