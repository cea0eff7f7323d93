"""What counts as unchanged."""

import pytest

from orchestra.kube.errors import ApiError, Cause, Refusal
from orchestra.kube.status import contains
from orchestra.kube.writes import means_another

READY = {"type": "Ready", "status": "True"}
THEIRS = {"type": "Theirs", "status": "False"}


@pytest.mark.parametrize(
    ("whole", "part", "expected"),
    [
        ({"phase": "Running", "theirs": 1}, {"phase": "Running"}, True),
        ({"phase": "Failed"}, {"phase": "Running"}, False),
        ({}, {"phase": "Running"}, False),
        (None, {"phase": "Running"}, False),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, True),
        ({"conditions": [THEIRS, READY]}, {"conditions": [READY]}, True),
        ({"conditions": [THEIRS]}, {"conditions": [READY]}, False),
        ({"conditions": [{**READY, "reason": "x"}]}, {"conditions": [READY]}, True),
        ({"conditions": None}, {"conditions": [READY]}, False),
        ({"names": ["a", "b"]}, {"names": ["a"]}, False),
        ({"names": []}, {"names": []}, True),
    ],
)
def test_ours_is_there_whatever_else_is(whole: object, part: object, expected: bool) -> None:
    assert contains(whole, part) is expected


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (Refusal(404, "NotFound"), True),
        (Refusal(409, "Conflict", "uid mismatch: the provided object specified uid x"), True),
        (Refusal(409, "Conflict", "the object has been modified"), False),
        (Refusal(422, "Invalid", causes=(Cause(field="metadata.uid"),)), True),
        (Refusal(422, "Invalid", causes=(Cause(field="spec.x"),)), False),
        (Refusal(403, "Forbidden"), False),
    ],
)
def test_a_refusal_that_means_another_object_is_known(refusal: Refusal, expected: bool) -> None:
    assert means_another(ApiError("PATCH /", refusal)) is expected
