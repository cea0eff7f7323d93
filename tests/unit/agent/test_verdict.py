"""When a worker is over, and as what."""

from __future__ import annotations

from collections import deque
from typing import Any

from orchestra.agent.failure import Failure
from orchestra.agent.hang import Watch
from orchestra.agent.ranks import Rank, Round
from orchestra.agent.result import build_result, shortened
from orchestra.agent.verdict import Stop, Verdict, judge


def a_rank(number: int, round: int = 0, size: int = 2, **fields: Any) -> Rank:
    rank = Rank(number, number, round, 100 + number, 99, size, Watch(0.0))
    for name, value in fields.items():
        setattr(rank, name, value)
    return rank


def ended(number: int, code: int, **fields: Any) -> Rank:
    return a_rank(number, how="ended", exit=code, **{"ended": 1.0, **fields})


def a_round(*ranks: Rank) -> Round:
    one = Round(2)
    for rank in ranks:
        one.join(rank)
    return one


def verdict(
    ranks: Round, launcher: int | None = None, stop: Stop | None = None, now: float = 5.0, needed: bool = False
) -> Verdict | None:
    return judge(ranks, launcher, stop, now, lambda _: needed, lambda: Failure("ExitCode", "launcher"))


STOP = Stop("SIGTERM", deadline=10.0)
SAVED = {"state": "stopped", "step": 7, "checkpoint": "/c/7"}


def state(*arguments: Any, **more: Any) -> str | None:
    found = verdict(*arguments, **more)
    return found.state if found else None


def test_done_when_all_ranks_have_exited_with_0() -> None:
    assert state(a_round(ended(0, 0), a_rank(1))) is None
    assert state(a_round(ended(0, 0))) is None, "the second has not even come"
    assert state(a_round(ended(0, 0), ended(1, 0))) == "done"
    assert state(a_round(ended(0, 0), ended(1, 0)), launcher=1) == "done", "its exit code means little"


def test_a_result_counts_more_than_an_exit_code() -> None:
    assert state(a_round(ended(0, 0, result=SAVED), ended(1, 1, result=SAVED))) == "stopped"


def test_a_rank_with_a_result_may_linger_but_not_for_ever() -> None:
    ranks = a_round(a_rank(0, result=SAVED, result_seen=1.0), a_rank(1, result=SAVED, result_seen=2.0))
    assert state(ranks, now=5.0) is None
    assert state(ranks, now=13.0) == "stopped"


def test_other_nodes_may_still_need_the_launcher() -> None:
    done = a_round(ended(0, 0), ended(1, 0))
    assert state(done, needed=True) is None
    assert state(done, needed=True, launcher=0) == "done"
    assert state(done, needed=True, stop=STOP) == "done", "a stop finds it finished"
    saved = a_round(ended(0, 0, result=SAVED), ended(1, 0, result=SAVED))
    assert state(saved, needed=True, stop=STOP) is None
    assert state(saved, needed=True, stop=STOP, now=10.0) == "stopped"


def test_what_another_round_cannot_mend_is_not_waited_for() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "t.py", line 1, in <module>',
        "ModuleNotFoundError: No module named 'x'",
    ]
    hopeless = ended(0, 1, errors=deque(lines), lines=deque(lines))
    assert state(a_round(hopeless, a_rank(1))) == "failed"


def test_a_failed_rank_is_the_launchers_business_until_it_gives_up() -> None:
    ranks = a_round(ended(0, 3), ended(1, -9, cleared=True))
    assert state(ranks) is None
    found = verdict(ranks, launcher=1)
    assert found is not None
    assert found.failure is not None
    assert (found.state, found.failure.rank, found.failure.exit) == ("failed", 0, 3)


def test_a_launcher_that_falls_by_itself_is_named() -> None:
    found = verdict(a_round(a_rank(0), a_rank(1)), launcher=-9)
    assert found is not None
    assert found.failure is not None
    assert found.failure.message == "launcher"


def test_a_stop_before_any_rank_is_immediate() -> None:
    assert state(Round(2), stop=STOP) == "stopped"


def test_a_stop_waits_for_the_ranks_but_only_so_long() -> None:
    ranks = a_round(ended(0, 0, result=SAVED), a_rank(1))
    assert state(ranks, stop=STOP) is None
    assert state(ranks, stop=STOP, launcher=-9) is None, "the rank can save without torchrun"
    found = verdict(ranks, stop=STOP, now=10.0)
    assert found is not None
    assert "rank 1 did not stop" in found.message


def test_ranks_that_a_stop_ended_by_signal_have_not_failed_but_one_that_could_not_save_has() -> None:
    asked = {"stop_requested": True}
    found = verdict(a_round(ended(0, -15, **asked), ended(1, -15, **asked)), stop=STOP)
    assert found == Verdict("stopped")
    found = verdict(a_round(ended(0, -15, **asked), ended(1, 1, **asked)), stop=STOP)
    assert found is not None
    assert found.failure is not None
    assert found.failure.rank == 1


def test_a_local_rank_that_comes_again_opens_a_new_round() -> None:
    ranks = a_round(ended(0, -9), ended(1, 0, cleared=True))
    assert ranks.join(a_rank(1, round=1))
    assert ranks.last_failure is not None
    assert ranks.last_failure.rank == 0
    assert [rank.rank for rank in ranks.ranks] == [1]
    assert not ranks.join(a_rank(0, round=1))
    assert ranks.restarts == 1
    assert ranks.failure() is None, "the round before is forgotten"


def test_a_change_of_nodes_is_a_round_but_no_restart() -> None:
    ranks = a_round(ended(0, -9, cleared=True), ended(1, -9, cleared=True))
    assert ranks.join(a_rank(0))
    assert ranks.restarts == 0
    assert ranks.last_failure is None


def test_the_result_fits_a_termination_log() -> None:
    lines = ["é" * 390] * 30
    failure = Failure("Exception", "m" * 9000, lines, rank=1, local_rank=1, exit=1, time=2.0)
    result = build_result(Verdict("failed", failure), a_round(ended(0, 1)), 2, 0, None, None)
    assert result["exitCode"] == 1
    short = shortened(result)
    assert len(short) <= 4096
    assert b'"Exception"' in short


PEER = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer [10.0.0.1]:1234"


def fell(number: int, *, with_a_peer: bool) -> Rank:
    errors = deque(PEER.splitlines()) if with_a_peer else deque(["Traceback (most recent call last):", "ValueError: x"])
    return ended(number, 1, errors=errors, lines=errors)


def test_an_elastic_worker_is_ended_by_failures_of_its_own_and_not_by_the_loss_of_others() -> None:
    def over(ranks: Round, left: int) -> bool:
        return judge(ranks, None, None, 5.0, lambda _: False, lambda: Failure("", ""), left) is not None

    lost_a_peer = a_round(fell(0, with_a_peer=True), a_rank(1, cleared=True, how="ended", exit=-15))
    assert not over(lost_a_peer, 0)
    assert over(a_round(fell(0, with_a_peer=False), fell(1, with_a_peer=True)), 0)
    assert not over(a_round(fell(0, with_a_peer=False)), 1)
    lost_a_peer.join(a_rank(0, round=1))
    assert (lost_a_peer.failures, lost_a_peer.restarts) == (0, 1)
    again = a_round(fell(0, with_a_peer=False))
    again.join(fell(0, with_a_peer=False))
    assert again.failures == 1
    assert over(again, 1), "the second failure is one too many"
    result = build_result(Verdict("done"), lost_a_peer, 1, 0, None, None, own_failures=True)
    assert result["restarts"] == 0
