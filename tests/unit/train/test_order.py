"""The order of samples."""

from itertools import pairwise

import pytest

from orchestra.train.order import Order


@pytest.mark.parametrize("samples", [1, 2, 3, 7, 64, 65, 1000])
def test_each_epoch_sees_each_sample_once(samples: int) -> None:
    order = Order(samples, seed=5)
    for epoch in (0, 1, 9):
        assert sorted(order[epoch * samples + index] for index in range(samples)) == list(range(samples))


def test_epochs_and_seeds_differ_and_nothing_else_does() -> None:
    first, second = ([Order(1000, 5)[index] for index in range(start, start + 1000)] for start in (0, 1000))
    other = [Order(1000, 6)[index] for index in range(1000)]
    assert first == [Order(1000, 5)[index] for index in range(1000)]
    assert sum(one == two for one, two in zip(first, second, strict=True)) < 20
    assert sum(one == two for one, two in zip(first, other, strict=True)) < 20
    assert sum(abs(one - two) < 100 for one, two in pairwise(first)) < 300, "neighbours stay apart"


def test_a_later_position_is_known_without_the_earlier_ones() -> None:
    assert Order(10**12, 3)[5 * 10**15] == Order(10**12, 3)[5 * 10**15]
    assert 0 <= Order(10**12, 3)[5 * 10**15] < 10**12


def test_processes_only_slice_the_batch() -> None:
    order = Order(50, 1)
    for step in range(4):
        whole = order.share(step, 8, 0, 1)
        for size in (2, 4):
            parts = [order.share(step, 8, rank, size) for rank in range(size)]
            assert sorted(sample for part in parts for sample in part) == sorted(whole)


def test_an_empty_order_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Order(0, 1)
