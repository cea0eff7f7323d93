"""Tests that need a tier of the testbed, on a machine where that tier cannot run.

They are reported as *not run*, with the reason, and counted in pytest's closing line: a test that silently
did not happen is worse than one that failed. Where `CI` is true they fail.

A plugin describes its tier once:

    def pytest_configure(config):
        register_tier(config, Tier("tier 2 (two real nodes)", "cluster", ("cluster",), prepare))

`prepare` is called once, before the first test and outside any test's timeout, if a selected test needs the
tier.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import pytest

from testbed.progress import Progress

_NOT_RUN = "tier not run"


class TierUnavailable(Exception):
    """The tier cannot run on this machine; the text says why, and what would help."""


@runtime_checkable
class GathersLogs(Protocol):
    """A fixture whose logs are wanted when a test that uses it fails."""

    def gather_logs(self, to: Path) -> Path:
        """Copy all logs into a folder."""
        ...


@dataclass(frozen=True)
class Tier:
    """What pytest must know of one tier."""

    title: str
    marker: str
    fixtures: Sequence[str]
    """A test that uses one of these gets the marker by itself."""
    prepare: Callable[[Progress], None]
    """Gets ready what takes long (programs, packages); TierUnavailable where that cannot be."""
    required_in_ci: bool = True
    """Whether `CI=true` makes its absence a failure."""


_tiers = pytest.StashKey[list[Tier]]()
_reasons = pytest.StashKey[dict[str, str]]()


def register_tier(config: pytest.Config, tier: Tier) -> None:
    """Make a tier known to this test run."""
    tiers(config).append(tier)


def tiers(config: pytest.Config) -> list[Tier]:
    """All tiers of this test run."""
    return config.stash.setdefault(_tiers, [])


def mark_users_of_tiers(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Give each test that uses a tier's fixture the tier's marker."""
    for tier in tiers(config):
        for item in items:
            if set(tier.fixtures) & set(getattr(item, "fixturenames", ())):
                item.add_marker(tier.marker)


def prepare_tiers(config: pytest.Config, items: Sequence[pytest.Item], progress: Progress) -> None:
    """Prepare the tiers that selected tests need, and remember why one cannot be had."""
    reasons = config.stash.setdefault(_reasons, {})
    for tier in tiers(config):
        if any(item.get_closest_marker(tier.marker) for item in items):
            try:
                tier.prepare(progress)
            except TierUnavailable as error:
                reasons[tier.marker] = str(error)


def check_tiers_of(item: pytest.Item) -> None:
    """In a test's setup: end it as not run, or under CI as failed, when one of its tiers is unavailable."""
    reasons = item.config.stash.get(_reasons, {})
    for tier in tiers(item.config):
        if tier.marker in reasons and item.get_closest_marker(tier.marker):
            end_as_unavailable(item, tier, reasons[tier.marker])


def end_as_unavailable(item: pytest.Item, tier: Tier, reason: str) -> None:
    """End the test that is being set up as not run, or under `CI=true` as failed."""
    if tier.required_in_ci and os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"{tier.title} cannot run here, and under CI it must: {reason}", pytrace=False)
    message = f"{tier.title} cannot run here: {reason}"
    item.user_properties.append((_NOT_RUN, message))
    pytest.skip(message)


def why_not_run(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """The reason why a test was not run; None where it was, or was skipped by its own wish."""
    for name, value in getattr(report, "user_properties", ()):
        if name == _NOT_RUN:
            return str(value)
    return None


def not_run_lines(reports: Sequence[pytest.TestReport]) -> list[str]:
    """For the end of the run: each reason once, with the number of its tests."""
    counted = Counter(why_not_run(report) for report in reports)
    return [f"{count} not run: {reason}" for reason, count in counted.most_common()]


def gather_logs_of(item: pytest.Item, report: pytest.TestReport) -> None:
    """After a failure: copy the logs of the test's fixtures into one folder, and name it in the report."""
    fixtures: dict[str, object] = getattr(item, "funcargs", {})
    sources = {name: value for name, value in fixtures.items() if isinstance(value, GathersLogs)}
    if not sources:
        return
    safe_name = re.sub(r"[^A-Za-z0-9_.-]+", "-", item.nodeid.removeprefix("tests/"))
    folder = item.config.rootpath / "build" / "testbed-logs" / safe_name
    shutil.rmtree(folder, ignore_errors=True)
    for name, source in sources.items():
        try:
            source.gather_logs(folder / name)
        except Exception as error:  # noqa: BLE001 - the test's own failure is what must be seen
            report.sections.append(("testbed logs", f"{name}: could not be gathered: {error!r}"))
    report.sections.append(("testbed logs", f"gathered in {folder}"))
