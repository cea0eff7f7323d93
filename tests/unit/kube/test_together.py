"""Two requests at once, of which neither outlives the call."""

import asyncio

import pytest

from orchestra.kube.writes import together


async def fails() -> None:
    await asyncio.sleep(0)
    raise ValueError("no")


def test_both_are_awaited_and_the_firsts_answer_is_given() -> None:
    done = []

    async def second() -> None:
        await asyncio.sleep(0.01)
        done.append("second")

    assert asyncio.run(together(asyncio.sleep(0, "first"), second())) == "first"
    assert done == ["second"]


@pytest.mark.parametrize("which", ["first", "second"])
def test_a_failure_of_either_is_raised_and_the_other_is_over(which: str) -> None:
    over = []

    async def waits(seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            over.append(True)

    async def both() -> None:
        calls = (fails(), waits(60)) if which == "first" else (waits(0.01), fails())
        with pytest.raises(ValueError, match="no"):
            await together(*calls)
        assert over

    asyncio.run(both())
