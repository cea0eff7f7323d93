"""What may change in a job that exists."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_job
from orchestra.api.changes import forbidden_changes

ALWAYS: list[dict[str, Any]] = [
    {"suspend": True}, {"lifecycle": {"maxRestarts": 9}}, {"maxRestarts": 9}, {"ttlSecondsAfterFinished": 1},
    {"elastic": {"minNodes": 1}}, {"workspace": {"snapshot": "abc"}},
]  # fmt: skip
WHILE_SUSPENDED: list[dict[str, Any]] = [
    {"numNodes": 2}, {"procsPerNode": 4}, {"command": "python other.py"}, {"command": ["python", "x"]}, {"image": "new"},
    {"env": [{"name": "A", "value": "1"}]},
]  # fmt: skip
NEVER: list[dict[str, Any]] = [
    {"jobQueue": "other"}, {"launcher": "none"}, {"storage": {"datasets": {"claimName": "x"}}}, {"labels": {"a": "b"}},
    {"workspace": {"source": "git", "url": "u"}}, {"volumes": [{"name": "x"}]}, {"setupCommand": "x"},
    {"overrides": {"priorityClassName": "x"}}, {"sync": {"data": "s3://b"}}, {"secrets": [{"name": "s"}]},
]  # fmt: skip


@pytest.mark.parametrize("change", ALWAYS)
def test_always(change: dict[str, Any]) -> None:
    assert not forbidden_changes(a_job().spec, a_job(**change).spec)


@pytest.mark.parametrize("change", WHILE_SUSPENDED)
def test_only_while_suspended(change: dict[str, Any]) -> None:
    (problem,) = forbidden_changes(a_job().spec, a_job(**change).spec)
    assert "suspended" in problem.reason
    assert not forbidden_changes(a_job(suspend=True).spec, a_job(suspend=True, **change).spec)


@pytest.mark.parametrize("change", NEVER)
def test_never(change: dict[str, Any]) -> None:
    for suspend in (True, False):
        problems = forbidden_changes(a_job(suspend=suspend).spec, a_job(suspend=suspend, **change).spec)
        assert [problem.path for problem in problems] == [f"spec.{next(iter(change))}"]
