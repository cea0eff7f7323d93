"""How a global batch is shared. (Its order needs torch: see the integration tests.)"""

import pytest

from orchestra.train.batches import Batches, refuse_uneven
from orchestra.train.world import Refused


def test_a_number_of_processes_that_does_not_divide_the_batch_is_refused_naming_those_that_do() -> None:
    with pytest.raises(Refused, match=r"3 processes cannot share a global batch of 8 evenly\. .*: 1, 2, 4, 8\.$"):
        refuse_uneven(8, 3)
    refuse_uneven(8, 4)


def test_many_fitting_numbers_are_not_all_named() -> None:
    with pytest.raises(Refused, match=r"1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, \.\.\.\.$"):
        refuse_uneven(2520, 11)


@pytest.mark.parametrize(("samples", "batch", "sizes"), [(8, 4, [4, 4]), (10, 4, [4, 4, 2]), (3, 8, [3])])
def test_the_last_batch_of_an_epoch_holds_what_is_left(samples: int, batch: int, sizes: list[int]) -> None:
    batches = Batches(samples, batch, epochs=3, seed=0)
    assert batches.steps == 3 * len(sizes)
    assert [batches.size_of(step) for step in range(1, batches.steps + 1)] == sizes * 3
