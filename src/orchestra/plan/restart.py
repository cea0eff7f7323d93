"""Restart policy: what follows when an attempt has ended. Pure; time is an argument.

One budget. Failures spend it, in place or by a new attempt; a newer complete checkpoint refills it. What is not the
job's fault (an agent or the machine lost, a stop nobody asked for) is free, with a growing pause while no checkpoint
appears.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestra.api.template import Lifecycle
from orchestra.plan.outcome import Outcome

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 300.0
# Another try would find the same text, the same files and the same packages.
HOPELESS = frozenset({"SyntaxError", "FileNotFound", "ImportError", "LauncherMissing", "Workspace", "SyncRefused"})


@dataclass(frozen=True)
class Budget:
    """What has been used since the last new checkpoint."""

    spent: int = 0
    free_retries: int = 0


@dataclass(frozen=True)
class Retry:
    """Start again after a pause."""

    pause: float
    budget: Budget
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """The job has failed."""

    reason: str


def restarts_left(lifecycle: Lifecycle, budget: Budget) -> int:
    """What a launcher may still use in place."""
    if lifecycle.restart_policy == "Never":
        return 0
    return max(0, (lifecycle.max_restarts or 0) - budget.spent)


def after(outcome: Outcome, lifecycle: Lifecycle, budget: Budget, *, new_checkpoint: bool) -> Retry | GiveUp:
    """What follows an attempt that did not succeed and that nobody asked to stop."""
    budget = Budget() if new_checkpoint else Budget(budget.spent + outcome.restarts, budget.free_retries)
    reason = outcome.failure.reason if outcome.failure and outcome.failure.reason else outcome.state
    if outcome.state in ("lost", "stopped"):
        if lifecycle.restart_policy == "Never":
            return GiveUp(reason)
        pause = min(_FIRST_PAUSE * 2.0**budget.free_retries, _LONGEST_PAUSE)
        return Retry(pause, Budget(budget.spent, budget.free_retries + 1), reason)
    if reason in HOPELESS or restarts_left(lifecycle, budget) == 0:
        return GiveUp(reason)
    pause = min(_FIRST_PAUSE * 2.0**budget.spent, _LONGEST_PAUSE)
    return Retry(pause, Budget(budget.spent + 1, budget.free_retries), reason)
