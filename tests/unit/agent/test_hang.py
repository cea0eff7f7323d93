"""When a node hangs, and who is missing."""

from __future__ import annotations

from orchestra.agent.hang import Watch, find_missing, limit, silence
from orchestra.agent.tracebacks import Frame, in_collective, main_stack


def watch(since: float = 0.0, **progress: object) -> Watch:
    one = Watch(since)
    if progress:
        one.report(dict(progress), since)
    return one


def test_a_rank_that_reports_nothing_is_watched_only_on_request() -> None:
    assert silence({0: watch()}, None, 1e6) is None
    assert silence({0: watch()}, 60, 61) == 61
    assert silence({0: watch()}, 60, 59) is None


def test_before_the_first_step_nothing_hangs() -> None:
    assert silence({0: watch(phase="init")}, None, 1e6) is None
    assert silence({0: watch(phase="load")}, None, 1e6) is None


def test_after_it_the_limit_is_300_seconds_or_20_steps() -> None:
    assert limit(watch(step=1, stepSeconds=0.1), None) == 300
    assert limit(watch(step=1, stepSeconds=60.0), None) == 1200
    assert limit(watch(step=1, stepSeconds=60.0), 5) == 5


def test_steps_are_measured_where_the_rank_does_not() -> None:
    one = Watch(0.0)
    for step in range(10):
        one.report({"step": step}, 100.0 * step)
    assert limit(one, None) == 2000


def test_an_announced_phase_has_its_own_limit() -> None:
    assert limit(watch(step=1, phase="compile", phaseLimitSeconds=60), 1) == 60
    assert limit(watch(step=1, phase="save"), None) == 1800
    assert limit(watch(phase="load", phaseLimitSeconds=60), None) == 60


def test_while_one_rank_is_in_a_phase_the_others_wait_for_it() -> None:
    ranks = {0: watch(step=5, phase="save"), 1: watch(step=5)}
    assert silence(ranks, None, 400) is None
    assert silence(ranks, None, 1801) == 1801


def test_one_rank_may_report_for_all() -> None:
    assert silence({0: watch(step=5), 1: watch(), 2: watch()}, None, 301) == 301


def test_only_what_moves_is_life_for_a_rank_that_reports() -> None:
    one = watch(step=1)
    one.report({"step": 1, "time": 7, "loss": 3.0}, 100)
    one.output(100)
    one.used_cpu(0, 100)
    one.used_cpu(50, 150)
    assert silence({0: one}, 200, 201) == 201
    one.report({"step": 1, "collective": 4}, 150)
    assert silence({0: one}, 200, 201) is None


def test_output_or_cpu_time_is_life_for_one_that_does_not() -> None:
    one = watch()
    one.output(50)
    assert silence({0: one}, 60, 100) is None
    one.used_cpu(1.0, 100)
    one.used_cpu(1.0, 110)
    assert silence({0: one}, 60, 111) == 61
    one.used_cpu(3.0, 112)
    assert silence({0: one}, 60, 113) is None
    one.used_cpu(3.05, 122)
    assert one.since == 112, "half a percent of a core is a thread that wakes now and then"


def test_the_rank_behind_is_the_missing_one() -> None:
    ranks = {0: watch(step=9, collective=10), 1: watch(step=9, collective=9), 2: watch(step=9, collective=10)}
    found = find_missing(ranks, {}, 300)
    assert (found.missing, found.waiting) == ([1], [0, 2])
    assert "rank 1 is missing from collective 10 (reached 9); ranks 0, 2 are waiting" in found.message


def test_stacks_tell_where_numbers_do_not() -> None:
    waiting = [Frame("/site/torch/distributed/distributed_c10d.py", "3", "all_reduce"), Frame("t.py", "9", "<module>")]
    stuck = [Frame("/code/data.py", "7", "fetch"), Frame("t.py", "8", "<module>")]
    ranks = {0: watch(step=3), 1: watch(step=3)}
    found = find_missing(ranks, {0: waiting, 1: stuck}, 300)
    assert found.missing == [1]
    assert "rank 1 is in fetch (data.py:7)" in found.message
    assert "another node" in find_missing(ranks, {0: waiting, 1: waiting}, 300).message
    assert find_missing(ranks, {0: stuck, 1: stuck}, 300).missing == []
    assert find_missing({0: watch(step=3)}, {0: stuck}, 300).missing == [0]
    assert find_missing({0: watch(step=3)}, {}, 300).missing == []


def test_the_main_thread_is_the_last_of_a_dump() -> None:
    dump = [
        "Fatal Python error: Aborted",
        "Thread 0x00007f (most recent call first):",
        '  File "/usr/lib/threading.py", line 3 in wait',
        "",
        "Current thread 0x00008f (most recent call first):",
        '  File "/site/torch/distributed/c10d_logger.py", line 83 in wrapper',
        '  File "train.py", line 9 in <module>',
        "",
        "Extension modules: numpy (total: 1)",
    ]
    stack = main_stack(dump)
    assert [frame.function for frame in stack] == ["wrapper", "<module>"]
    assert in_collective(stack)
