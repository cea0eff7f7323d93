"""Which status writes may wait for the next one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from operator_parts import NOW, a_pod, job, seen
from orchestra.api.job import RestartBudget, Workers
from orchestra.operator.decision import CREATED, Decision, told
from orchestra.operator.kinds import PodSpec
from orchestra.operator.pace import can_wait
from orchestra.plan import status


def counted(made: Any, **other: Any) -> Decision:
    current = status.status_of(made)
    workers = msgspec.structs.replace(current.workers or Workers(), running=1)
    return Decision(msgspec.structs.replace(current, workers=workers, **other))


def test_counting_on_can_wait_and_news_cannot() -> None:
    made = job("Provisioning", 1, created=True)
    world = seen(made, a_pod(0, "Running"), a_pod(1, "Pending"))
    assert can_wait(world, counted(made))
    for news in ({"phase": "Running"}, {"attempt": 2}, {"budget": RestartBudget(spent=1)}, {"observed_generation": 7}):
        assert not can_wait(world, counted(made, **news)), news
    assert not can_wait(world, Decision(status.status_of(made), create=True))


@pytest.mark.parametrize("node", ["", "n0"])
def test_that_all_were_created_is_written_before_one_of_them_can_run(node: str) -> None:
    made = job("Provisioning", 1, created=False)
    after = job("Provisioning", 1, created=True)
    pods = [msgspec.structs.replace(a_pod(index, "Pending"), spec=PodSpec(node_name=node)) for index in (0, 1)]
    assert CREATED in {one.type for one in status.status_of(after).conditions}
    assert can_wait(seen(made, *pods), Decision(status.status_of(after))) is (node == "")


def test_a_sentence_that_only_counts_is_no_event() -> None:
    made = job("Provisioning", 1, created=True)
    first = told(made, "Provisioning", "Starting", "0 of 2 workers are running", NOW)
    again = msgspec.structs.replace(made, status=first.status)
    assert told(again, "Provisioning", "Starting", "1 of 2 workers are running", NOW).events == ()
    stuck = "w-0: ImagePullBackOff: no such image"
    assert told(again, "Provisioning", "Starting", stuck, NOW, news=True).events
    assert told(again, "Running", "Started", "all workers are running", NOW).events
