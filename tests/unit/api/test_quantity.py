"""Kubernetes quantities."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.api.quantity import Quantity, binary_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [("512Gi", 512 * 2**30), ("500m", Fraction(1, 2)), ("1e3", 1000), ("2E", 2 * 10**18), ("1.5", Fraction(3, 2)),
     (-1, -1), ("10k", 10_000), (".5", Fraction(1, 2)), ("+3", 3), ("5E-3", Fraction(5, 1000))],
)  # fmt: skip
def test_a_quantity_has_its_exact_value(text: str | int, value: Fraction) -> None:
    assert Quantity(text).value == value


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "1.2.3", "0x10", "ten", "1e", "--1", "1e99999999", "."])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|range"):
        Quantity(text)


def test_spelling_is_kept_and_value_is_compared() -> None:
    assert str(Quantity("1024Mi")) == "1024Mi"
    assert Quantity("1024Mi") == Quantity("1Gi")
    assert Quantity("1G") < Quantity("1Gi")
    assert len({Quantity("1024Mi"), Quantity("1Gi")}) == 1


@given(st.integers(0, 2**60))
def test_bytes_come_back_exactly(amount: int) -> None:
    assert binary_quantity(amount).value == amount


@given(st.integers(1, 10_000), st.integers(1, 64), st.integers(1, 64))
def test_scaling_never_rounds_up(amount: int, numerator: int, denominator: int) -> None:
    part = Fraction(numerator, denominator)
    assert Quantity(amount).millis_times(part).value <= amount * part
    assert Quantity(f"{amount}Mi").bytes_times(part).value <= amount * 2**20 * part
