"""The line in front of a queue: never above the limit, the head is never delayed, and asking twice changes nothing."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from orchestra.operator.queueing.line import UNLIMITED, Amounts, Claim, places

GIB = 2**30


def claim(name: str, gpus: int = 0, *, holds: bool = False, priority: int = 0, at: int = 0, cpus: int = 0, memory: int = 0,
          namespace: str = "ns") -> Claim:  # fmt: skip
    asks = Amounts(gpus, cpus * 1000, memory * GIB)
    return Claim(name, namespace, name, asks, holds, priority, f"2026-01-01T00:00:{at:02}Z")


def limit(gpus: int = UNLIMITED, cpus: int = UNLIMITED, memory: int = UNLIMITED) -> Amounts:
    return Amounts(
        gpus, cpus if cpus == UNLIMITED else cpus * 1000, memory if memory == UNLIMITED else memory * GIB
    )  # fmt: skip


def started(most: Amounts, *claims: Claim) -> list[str]:
    told = places("q", most, claims)
    return [one.name for one in claims if not one.holds and told[one.uid].may_start]


def test_who_came_first_starts_first_and_who_does_not_fit_waits_with_numbers() -> None:
    line = (claim("second", 8, at=2), claim("first", 8, at=1), claim("runs", 4, holds=True))
    told = places("team", limit(gpus=16), line)
    assert told["first"].may_start
    assert not told["second"].may_start
    assert told["second"].reason == "QueueLimit"
    assert told["second"].message == "first in the line of queue team: wants 8 GPUs, 12 of 16 GPUs are in use"


def test_a_higher_priority_goes_first() -> None:
    assert started(limit(gpus=8), claim("old", 8, at=1), claim("urgent", 8, at=2, priority=5)) == ["urgent"]


def test_the_place_and_who_is_ahead_are_told_and_other_namespaces_are_named() -> None:
    line = [claim(f"j{i}", 4, at=i, namespace="other" if i == 1 else "ns") for i in range(1, 7)]
    told = places("q", limit(gpus=4), [claim("runs", 4, holds=True), *line])
    assert told["j2"].message.startswith(
        "number 2 in the line of queue q: wants 4 GPUs, 4 of 4 GPUs are in use; ahead: "
    )
    assert told["j2"].message.endswith("ahead: other/j1")
    assert told["j6"].message.endswith("ahead: other/j1, j2, j3 and 2 more")


def test_a_long_line_hears_round_numbers_so_that_one_step_is_not_a_thousand_writes() -> None:
    line = [claim(f"j{i:04}", 4) for i in range(500)]
    before = places("q", limit(gpus=4), [claim("runs", 4, holds=True), *line])
    after = places("q", limit(gpus=4), [claim("runs", 4, holds=True), *line[1:]])
    assert "more than 300 jobs are ahead" in before["j0342"].message
    assert sum(before[one.uid] != after[one.uid] for one in line[1:]) < 30


def test_what_can_never_fit_says_so_and_stands_in_nobodys_way() -> None:
    told = places("q", limit(gpus=8, memory=64), (claim("huge", 16, memory=32, at=1), claim("small", 4, at=2)))
    assert told["small"].may_start
    assert told["huge"].reason == "NeverFits"
    assert told["huge"].message == (
        "can never fit: wants 16 GPUs and queue q lets its jobs use 8 GPUs at most; "
        "ask for less, or have resources.limit of the queue raised"
    )


def test_cpus_and_memory_are_bounded_too() -> None:
    most = limit(cpus=8, memory=64)
    assert started(most, claim("a", cpus=6, memory=8, at=1), claim("b", cpus=4, memory=8, at=2)) == ["a"]
    assert started(most, claim("a", cpus=1, memory=60, at=1), claim("b", cpus=1, memory=8, at=2)) == ["a"]
    assert started(most, claim("a", 64, cpus=1), claim("b", 64, cpus=1)) == ["a", "b"], "GPUs are not bounded here"


def test_a_small_job_overtakes_only_where_it_cannot_delay_the_head() -> None:
    # The head (8) can only start when the 10 end, and then 6 are spare beside it.
    runs, head = claim("runs", 10, holds=True), claim("head", 8, at=1)
    assert started(limit(gpus=16), runs, head, claim("small", 6, at=2)) == ["small"]
    # Here the head starts when the 4 end, and nothing is spare then.
    two = (claim("eight", 8, holds=True), claim("four", 4, holds=True))
    assert started(limit(gpus=16), *two, head, claim("small", 1, at=2)) == []
    # What takes nothing of what is scarce delays nobody.
    assert started(limit(gpus=16), *two, head, claim("cpu", 0, cpus=4, at=2)) == ["cpu"]


def test_a_lowered_limit_takes_nothing_away_and_lets_nobody_in() -> None:
    told = places("q", limit(gpus=4), (claim("runs", 8, holds=True), claim("small", 1)))
    assert told["runs"].may_start
    assert not told["small"].may_start


CLAIMS = st.lists(
    st.builds(
        claim,
        st.uuids().map(str),
        st.integers(0, 10),
        holds=st.booleans(),
        priority=st.integers(0, 2),
        at=st.integers(0, 5),
        cpus=st.integers(0, 6),
    ),
    max_size=9,
    unique_by=lambda one: one.uid,
)
LIMITS = st.builds(limit, gpus=st.integers(0, 24), cpus=st.one_of(st.just(UNLIMITED), st.integers(0, 12)))


def total(claims: list[Claim]) -> Amounts:
    added = Amounts()
    for one in claims:
        added += one.asks
    return added


@given(CLAIMS, LIMITS)
def test_nobody_is_let_in_above_the_limit(claims: list[Claim], most: Amounts) -> None:
    told = places("q", most, claims)
    assert told.keys() == {one.uid for one in claims}
    new = [one for one in claims if not one.holds and told[one.uid].may_start]
    held = [one for one in claims if one.holds]
    assert all(told[one.uid].may_start for one in held)
    # A limit that was lowered may be passed already, in a resource of which nobody gets more then.
    over = total([*held, *new])
    for one, before, bound in zip(over, total(held), most, strict=True):
        assert bound == UNLIMITED or one <= bound or one == before


@given(CLAIMS, LIMITS)
def test_asking_again_after_acting_changes_nothing(claims: list[Claim], most: Amounts) -> None:
    told = places("q", most, claims)
    acted = [Claim(**{**vars(one), "holds": told[one.uid].may_start}) for one in claims]
    again = places("q", most, acted)
    assert {uid: place.may_start for uid, place in again.items()} == {uid: p.may_start for uid, p in told.items()}


@given(CLAIMS, LIMITS)
def test_whoever_of_the_running_ends_the_head_starts_as_soon_as_without_those_who_overtook(
    claims: list[Claim], most: Amounts
) -> None:
    told = places("q", most, claims)
    line = sorted((one for one in claims if not one.holds and one.asks.within(most)), key=lambda one: one.order)
    waiting = [one for one in line if not told[one.uid].may_start]
    if not waiting:
        return
    head = waiting[0]
    in_turn = [one for one in line if told[one.uid].may_start and one.order < head.order]
    overtook = [one for one in line if told[one.uid].may_start and one.order > head.order]
    could_end = [one for one in claims if one.holds] + in_turn
    for size in range(len(could_end) + 1):
        for left in itertools.combinations(could_end, size):
            beside = total([*left, head])
            if beside.within(most):
                assert (beside + total(overtook)).within(most)


@given(CLAIMS, LIMITS)
def test_the_line_never_stands_still_when_nobody_runs(claims: list[Claim], most: Amounts) -> None:
    idle = [Claim(**{**vars(one), "holds": False}) for one in claims if one.asks.within(most)]
    told = places("q", most, idle)
    assert not idle or any(place.may_start for place in told.values())
