"""Whether a gang fits into what the namespace's ResourceQuotas leave. Pure.

The server checks pod by pod: without looking ahead, a quota one pod too small lets half a gang in. What only the
server can know (defaults of a LimitRange, webhooks) it still refuses itself, and then everything of the attempt goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import msgspec

from orchestra.api.quantity import Quantity
from orchestra.kube.objects import Metadata, Resource, Slim

Json = dict[str, Any]
RESOURCE_QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")
EXCEEDED = "QuotaExceeded"

_COUNTED_BY_LIMIT = ("cpu", "memory", "ephemeral-storage")


class ScopeRequirement(Slim, frozen=True):
    """Which pods a quota counts."""

    scope_name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()


class ScopeSelector(Slim, frozen=True):
    """All of them must hold."""

    match_expressions: tuple[ScopeRequirement, ...] = ()


class QuotaSpec(Slim, frozen=True):
    """What may be used."""

    hard: dict[str, str] = {}
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector = ScopeSelector()


class QuotaStatus(Slim, frozen=True):
    """What is used."""

    hard: dict[str, str] = {}
    used: dict[str, str] = {}


class QuotaObject(Slim, frozen=True):
    """A ResourceQuota in the cache."""

    metadata: Metadata
    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()

    @property
    def scope_requirements(self) -> tuple[ScopeRequirement, ...]:
        """Both spellings as one."""
        return (
            *(ScopeRequirement(scope_name=name) for name in self.spec.scopes),
            *self.spec.scope_selector.match_expressions,
        )


def shortage(quotas: Iterable[QuotaObject], pods: Sequence[Json]) -> str | None:
    """What a gang of these pods lacks, in the words of the server; None when it fits as far as we can see."""
    for quota in quotas:
        if not quota.status.hard:
            continue  # nobody has counted yet: the server will say
        counted = [pod for pod in pods if all(_matches(one, pod) for one in quota.scope_requirements)]
        wanted: defaultdict[str, Fraction] = defaultdict(Fraction)
        for pod in counted:
            for name, amount in usage(pod).items():
                wanted[name] += amount
        short = [
            (name, wanted[name], used, Quantity(limit))
            for name, limit in sorted(quota.spec.hard.items())
            if wanted[name] and wanted[name] + (used := _used(quota, name)) > Quantity(limit).value
        ]
        if short:
            numbers = ", ".join(
                f"{name}: the job needs {_text(need)}, {_text(used)} of {limit} are used"
                for name, need, used, limit in short
            )
            never = any(need > limit.value for _, need, _, limit in short)
            return f"quota {quota.metadata.name}: {numbers}" + ("; it can never fit" if never else "")
    return None


def has_more_room(old: QuotaObject, new: QuotaObject) -> bool:
    """Whether a change may let a waiting job in."""
    names = {*old.spec.hard, *new.spec.hard}
    return old.spec.scopes != new.spec.scopes or any(_room(new, name) > _room(old, name) for name in names)


def usage(pod: Json) -> dict[str, Fraction]:
    """What one pod counts for, under every name a quota may use."""
    requests, limits = _totals(pod, "requests"), _totals(pod, "limits")
    for name, amount in limits.items():
        requests.setdefault(name, amount)  # as the server fills it in
    used: dict[str, Fraction] = {"pods": Fraction(1), "count/pods": Fraction(1)}
    for name, amount in requests.items():
        used[f"requests.{name}"] = amount
        if name in _COUNTED_BY_LIMIT:
            used[name] = amount
    used |= {f"limits.{name}": amount for name, amount in limits.items()}
    return used


def _totals(pod: Json, kind: str) -> dict[str, Fraction]:
    spec = pod["spec"]
    total: dict[str, Fraction] = {}
    for container in spec.get("containers", []):
        for name, amount in _amounts(container, kind).items():
            total[name] = total.get(name, Fraction(0)) + amount
    for container in spec.get("initContainers", []):
        for name, amount in _amounts(container, kind).items():
            total[name] = max(total.get(name, Fraction(0)), amount)
    return total


def _amounts(container: Json, kind: str) -> dict[str, Fraction]:
    resources = container.get("resources") or {}
    return {name: Quantity(str(amount)).value for name, amount in (resources.get(kind) or {}).items()}


def _matches(need: ScopeRequirement, pod: Json) -> bool:
    """Whether a quota with this scope counts the pod. A scope we do not know counts none: the server decides."""
    spec = pod["spec"]
    if need.scope_name == "PriorityClass":
        name = spec.get("priorityClassName")
        match need.operator:
            case "In":
                return name in need.values
            case "NotIn":
                return name not in need.values
            case "DoesNotExist":
                return not name
            case _:
                return bool(name)
    best_effort = not _totals(pod, "requests") and not _totals(pod, "limits")
    facts = {
        "Terminating": spec.get("activeDeadlineSeconds") is not None,
        "NotTerminating": spec.get("activeDeadlineSeconds") is None,
        "BestEffort": best_effort,
        "NotBestEffort": not best_effort,
    }
    return facts.get(need.scope_name, False)


def _used(quota: QuotaObject, name: str) -> Fraction:
    return Quantity(quota.status.used.get(name, "0")).value


def _room(quota: QuotaObject, name: str) -> float:
    limit = quota.spec.hard.get(name)
    return float("inf") if limit is None else float(Quantity(limit).value - _used(quota, name))


def _text(amount: Fraction) -> str:
    whole = float(amount)
    for suffix, size in (("Gi", 2**30), ("Mi", 2**20)):
        if whole >= size and whole % (size / 4) == 0:
            return f"{whole / size:g}{suffix}"
    return f"{whole:g}"


def plain(body: Any) -> Json:
    """A child's body as JSON values."""
    made: Json = msgspec.to_builtins(body)
    return made
