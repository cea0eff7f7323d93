"""Retries and pace, without a server and without waiting."""

import threading
import time

import pytest

from orchestra.sync.errors import NoAccess, SyncError, Unreachable
from orchestra.sync.faults import Fault
from orchestra.sync.pace import Pace, Patience


def failing(*faults: Fault | None) -> tuple[list[int], object]:
    calls: list[int] = []

    def action() -> str:
        calls.append(len(calls))
        fault = faults[min(len(calls), len(faults)) - 1]
        if fault is not None:
            raise fault.told("read x", "s3://b")
        return "done"

    return calls, action


PASSING = Fault(Unreachable, "the server did not answer", passing=True)
SLOW = Fault(Unreachable, "the server answered 503", passing=True, slow_down=True)
DENIED = Fault(NoAccess, "access was denied")


def test_a_passing_fault_is_tried_again_with_random_waits_that_may_grow() -> None:
    waits: list[float] = []
    patience = Patience(first_wait=1.0, longest_wait=4.0, sleep=waits.append)
    calls, action = failing(PASSING, PASSING, PASSING, PASSING, None)
    assert patience.call(action, Pace(4)) == "done"  # type: ignore[arg-type]
    assert len(calls) == 5
    assert all(0 <= wait <= bound for wait, bound in zip(waits, (1, 2, 4, 4), strict=True))


def test_what_will_not_pass_is_not_tried_again() -> None:
    calls, action = failing(DENIED)
    with pytest.raises(NoAccess, match=r"cannot read x at s3://b: access was denied"):
        Patience(sleep=lambda _: None).call(action, Pace(4))  # type: ignore[arg-type]
    assert len(calls) == 1


def test_tries_end() -> None:
    calls, action = failing(PASSING)
    with pytest.raises(Unreachable):
        Patience(tries=3, sleep=lambda _: None).call(action, Pace(4))  # type: ignore[arg-type]
    assert len(calls) == 3


def test_slow_down_halves_what_runs_at_once_and_success_brings_it_back() -> None:
    pace = Pace(32)
    for _ in range(10):
        pace.slow_down()  # one burst of answers counts once
    assert pace.limit == 16
    time.sleep(0.12)
    pace.slow_down()
    assert pace.limit == 8
    for _ in range(2000):
        pace.went_well()
    assert pace.limit == 32


def test_a_slow_server_is_told_to_the_pace() -> None:
    pace = Pace(8)
    _, action = failing(SLOW, None)
    Patience(sleep=lambda _: None).call(action, pace)  # type: ignore[arg-type]
    assert pace.limit == 4


def test_no_more_run_at_once_than_the_pace_allows() -> None:
    pace, running, most = Pace(3), 0, 0
    lock = threading.Lock()

    def action() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1

    threads = [threading.Thread(target=lambda: Patience().call(action, pace)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 3


def test_who_waits_to_try_again_does_not_hold_others_up() -> None:
    pace = Pace(1)
    done = threading.Event()

    def sleep(_: float) -> None:
        other = threading.Thread(target=lambda: Patience().call(done.set, pace))
        other.start()
        other.join(5)
        assert done.is_set()

    _, action = failing(PASSING, None)
    Patience(sleep=sleep).call(action, pace)  # type: ignore[arg-type]


def test_an_error_that_is_no_answer_of_a_server_passes_through() -> None:
    def action() -> None:
        raise SyncError("a file changed")

    with pytest.raises(SyncError, match="a file changed"):
        Patience(sleep=lambda _: None).call(action, Pace(1))
