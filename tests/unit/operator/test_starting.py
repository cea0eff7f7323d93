"""What keeps an attempt from starting: half gangs, quotas, refusals; and what is said about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_queue
from operator_parts import NOW, UID, a_pod, job, seen
from orchestra.api.job import TorchrunJob
from orchestra.kube.errors import ApiError, Refusal
from orchestra.kube.pods import Condition
from orchestra.operator import half_gangs, placement, quotas, refusals
from orchestra.operator.attempt import plan_attempt
from orchestra.operator.decide import decide
from orchestra.operator.decision import Decision, Observation
from orchestra.operator.half_gangs import Rival, Seniority
from orchestra.operator.kinds import GroupCondition, PodObject, PodSpec
from orchestra.operator.starting import refused
from orchestra.plan import status

TIMEOUT = 120


def placed(index: int, seconds_ago: float | None = None, message: str = "0/2 nodes are available") -> PodObject:
    """A pending pod: bound so many seconds ago, or refused by the scheduler."""
    pod = a_pod(index, "Pending")
    if seconds_ago is None:
        condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=message)
        return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=(condition,)))
    when = status.timestamp(NOW - seconds_ago)
    condition = Condition(type="PodScheduled", status="True", last_transition_time=when)
    pod = msgspec.structs.replace(pod, spec=PodSpec(node_name=f"n{index}"))
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=(condition,)))


def said(made: Decision, kind: str) -> tuple[str, str | None, str]:
    found = next(c for c in made.status.conditions if c.type == kind)
    return found.status, found.reason, found.message or ""


def observed(job_: TorchrunJob, *pods: PodObject, **more: Any) -> Observation:
    return replace(seen(job_, *pods), born="2026-01-01T00:00:02Z", **more)


def test_a_half_gang_gives_its_places_back_and_waits_again_for_free() -> None:
    waiting = decide(observed(job("Provisioning", 1), placed(0, 60), placed(1)), NOW)
    assert (waiting.status.phase, waiting.delete) == ("Provisioning", ())
    assert waiting.look_again == pytest.approx(60, abs=1)
    status_, reason, message = said(waiting, "Scheduled")
    assert (status_, reason) == ("False", "HalfGang")
    assert message == "1 of 2 workers have a node: 0/2 nodes are available"
    store = a_pod(-1, role="store")
    given_back = decide(observed(job("Provisioning", 1), placed(0, 130), placed(1), store), NOW)
    assert (given_back.status.phase, len(given_back.delete)) == ("Queued", 3)
    assert said(given_back, "Phase")[1] == half_gangs.RELEASED
    budget = given_back.status.budget
    assert budget is not None
    assert (budget.spent, budget.free_retries, given_back.status.attempt) == (0, 0, 1)
    again = status.with_status(job(), **msgspec.structs.asdict(given_back.status))
    assert not decide(observed(again), NOW).create, "not before its pause is over"
    later = decide(observed(again), NOW + TIMEOUT)
    assert (later.create, later.status.attempt) == (True, 2)


def test_a_gang_without_any_place_keeps_its_pods_and_so_does_one_with_a_gang_scheduler() -> None:
    none = decide(observed(job("Provisioning", 1), placed(0), placed(1)), NOW + 10_000)
    assert (none.status.phase, none.delete) == ("Provisioning", ())
    queue = a_queue(scheduling={"gang": "coscheduling"})
    made = plan_attempt(queue, job("Provisioning", 1), UID, 1)
    gang = replace(observed(job("Provisioning", 1), placed(0, 1000), placed(1)), plan=made)
    assert decide(gang, NOW).delete == ()


def test_the_older_of_two_half_gangs_holds_on_while_the_younger_gives_way() -> None:
    half = (job("Provisioning", 1), placed(0, TIMEOUT + 10), placed(1))
    older = Rival(Seniority("2026-01-01T00:00:01Z", "z"), "half", NOW - 130)
    younger = Rival(Seniority("2026-01-01T00:00:03Z", "a"), "half", NOW - 130)
    assert decide(observed(*half, rivals=(older,)), NOW).status.phase == "Queued"
    assert decide(observed(*half, rivals=(younger,)), NOW).status.phase == "Provisioning"
    assert decide(observed(*half, rivals=(younger,)), NOW + TIMEOUT).status.phase == "Queued", "but not for ever"


def test_one_that_gave_way_lets_older_ones_try_first() -> None:
    released = status.in_phase(job("Queued", 1), "Queued", half_gangs.RELEASED, "test", NOW - 100)
    me, early, late = "2026-01-01T00:00:02Z", "2026-01-01T00:00:01Z", "2026-01-01T00:00:03Z"

    def starts(born: str, state: Any, time: float) -> bool:
        return decide(observed(released, rivals=(Rival(Seniority(born, "x"), state, time),)), NOW).create

    assert not starts(early, "half", NOW - 10)
    assert not starts(early, "placing", NOW - 10)
    assert not starts(early, "waiting", NOW - 1), "it is about to start"
    assert starts(early, "waiting", NOW + 30), "its pause is longer"
    assert starts(early, "half", NOW - TIMEOUT - 1), "it had its try"
    assert starts(late, "half", NOW - 10)
    assert me < late


def test_rivals_are_read_from_statuses() -> None:
    half = decide(observed(job("Provisioning", 1), placed(0, 60), placed(1)), NOW).status
    age = Seniority("2026-01-01T00:00:01Z", "u")
    assert half_gangs.may_be_rival(msgspec.json.encode(half))
    found = half_gangs.rival(age, half)
    assert found is not None
    assert found.state == "half"
    given_back = decide(observed(job("Provisioning", 1), placed(0, 130), placed(1)), NOW).status
    found = half_gangs.rival(age, given_back)
    assert found is not None
    assert found.state == "waiting"
    assert found.time > NOW - 1
    running = decide(observed(job("Provisioning", 1), a_pod(0), a_pod(1)), NOW).status
    assert half_gangs.rival(age, running) is None


def test_more_than_one_node_without_a_gang_scheduler_is_warned_about() -> None:
    made = decide(observed(job()), NOW)
    assert said(made, "GangScheduling")[:2] == ("False", "NoGangScheduler")
    queue = a_queue(scheduling={"gang": "coscheduling"})
    gang = replace(observed(job()), plan=plan_attempt(queue, job(), UID, 1))
    assert said(decide(gang, NOW), "GangScheduling")[:2] == ("True", "GangScheduler")


KAI = "OverLimit: lim4 quota has reached the allowable limit of GPUs. Limit is 4 GPUs, currently {} GPUs allocated and workload requested {} GPUs."  # fmt: skip


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (KAI.format(2, 3), "OverLimit"),
        (KAI.format(0, 8), "NeverFits"),
        ("QueueDoesNotExist: Queue 'X' does not exist.", "QueueDoesNotExist"),
        ("Resources were found for 8 pods while 16 are required for gang scheduling.", "Unschedulable"),
    ],
)
def test_the_schedulers_reason_and_numbers_are_copied(message: str, reason: str) -> None:
    made = plan_attempt(a_queue(kaiQueue="team"), job("Provisioning", 1), UID, 1)
    pods = (placed(0, message=message), placed(1, message=message))
    told = decide(replace(observed(job("Provisioning", 1), *pods), plan=made), NOW)
    assert said(told, "Scheduled")[:2] == ("False", reason)
    assert message in said(told, "Scheduled")[2]
    group = GroupCondition(type="UnschedulableOnNodePool", status="True", message=message)
    silent = replace(observed(job("Provisioning", 1), a_pod(0, "Pending"), a_pod(1, "Pending"), group=group), plan=made)
    assert message in said(decide(silent, NOW), "Scheduled")[2]
    bound = tuple(placed(index, 5) for index in (0, 1))
    told = decide(replace(observed(job("Provisioning", 1), *bound, group=group), plan=made), NOW)
    assert said(told, "Scheduled")[:2] == ("True", "Bound"), "what was said before counts no more"


def test_a_pending_timeout_counts_over_all_tries_to_be_placed() -> None:
    spec: Any = {"lifecycle": {"pendingTimeoutSeconds": 300}}
    started = decide(observed(job(**spec)), NOW - 400).status
    again = status.with_status(job(**spec), **msgspec.structs.asdict(started))
    again = status.in_phase(again, "Queued", half_gangs.RELEASED, "gave way", NOW - 10)
    assert decide(observed(again), NOW).status.phase == "Failed"


# ---- quotas


def a_quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> quotas.QuotaObject:
    body = {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}
    return msgspec.convert(body, quotas.QuotaObject)


@pytest.mark.parametrize(
    ("hard", "used", "fits"),
    [
        ({"pods": "3"}, {}, True),  # two workers and the store
        ({"pods": "3"}, {"pods": "1"}, False),
        ({"requests.nvidia.com/gpu": "16"}, {}, True),
        ({"requests.nvidia.com/gpu": "15"}, {}, False),
        ({"limits.memory": "1025Gi"}, {}, True),
        ({"requests.memory": "1Ti"}, {}, False),  # the store's 256Mi are too much
        ({"cpu": "193"}, {"cpu": "1"}, False),
        ({"services": "0"}, {}, True),  # not about pods: the server will say
    ],
)
def test_a_gang_is_compared_with_the_quota_as_a_whole(hard: dict[str, str], used: dict[str, str], fits: bool) -> None:
    made = decide(observed(job(), quotas=(a_quota(hard, used),)), NOW)
    assert made.create is fits
    if not fits:
        assert (made.status.phase, said(made, "Phase")[1]) == ("Queued", "QuotaExceeded")
        assert said(made, "Phase")[2].startswith("quota q: ")
        assert (made.status.attempt or 0) == 0, "that was no attempt"


def test_a_quota_counts_only_the_pods_of_its_scopes() -> None:
    def fits(**spec: Any) -> bool:
        return decide(observed(job(), quotas=(a_quota({"pods": "0"}, **spec),)), NOW).create

    assert not fits()
    assert fits(scopes=["Terminating"])
    assert fits(scopes=["BestEffort"])
    assert not fits(scopes=["NotTerminating", "NotBestEffort"])
    high = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}
    assert fits(scopeSelector=high)


def test_more_room_is_news_and_less_is_none() -> None:
    full, freed = a_quota({"pods": "3"}, {"pods": "3"}), a_quota({"pods": "3"}, {"pods": "1"})
    assert quotas.has_more_room(full, freed)
    assert not quotas.has_more_room(freed, full)
    assert quotas.has_more_room(full, a_quota({"pods": "9"}, {"pods": "3"}))


@given(hard=st.integers(0, 5), used=st.integers(0, 5), gpus=st.integers(0, 40))
def test_never_above_quota(hard: int, used: int, gpus: int) -> None:
    quota = a_quota({"pods": str(hard), "requests.nvidia.com/gpu": str(gpus)}, {"pods": str(used)})
    made = decide(observed(job(), quotas=(quota,)), NOW)
    assert made.create is (used + 3 <= hard and gpus >= 16)


# ---- refusals


def test_what_the_server_refuses_leaves_the_job_queued_with_its_words() -> None:
    first = refused(observed(job()), "PodSecurity", "violates PodSecurity", NOW)
    assert (first.status.phase, said(first, "Phase")[1:]) == ("Queued", ("PodSecurity", "violates PodSecurity"))
    assert (first.look_again, first.status.attempt, first.status.budget) == (5, None, None)
    longer = status.with_status(job(), **msgspec.structs.asdict(first.status))
    assert refused(observed(longer), "PodSecurity", "violates PodSecurity", NOW + 80).look_again == 80
    half_way = refused(observed(job("Provisioning", 2)), "QuotaExceeded", "exceeded quota", NOW)
    assert half_way.status.budget is not None
    assert half_way.status.budget.not_before == status.timestamp(NOW + 100), "its pods' end does not start the next"
    taken = refused(observed(job()), refusals.NAME_TAKEN, "Service ns/job exists", NOW)
    assert taken.status.phase == "Pending"


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (403, "pods is forbidden: exceeded quota: q, requested: pods=1", "QuotaExceeded"),
        (403, 'pods "x" is forbidden: violates PodSecurity "restricted"', "PodSecurity"),
        (403, 'pods "x" is forbidden: maximum cpu usage per Container is 1', "LimitRange"),
        (422, "bad", "Invalid"),
        (409, "try again", None),
        (500, "oh", None),
    ],
)
def test_a_refusal_is_told_from_trouble_on_the_way(code: int, message: str, reason: str | None) -> None:
    no = refusals.refusal_of([ApiError("POST", Refusal(code, "Invalid" if code == 422 else "", message))])
    assert (no.reason if no else None) == reason


def test_placement_of_an_elastic_gang_needs_only_its_least() -> None:
    elastic = job("Provisioning", 1, elastic={"minNodes": 1, "maxNodes": 2})
    made = plan_attempt(a_queue(), elastic, UID, 1)
    found = placement.placement((placed(0, 5), placed(1)), made)
    assert (found.whole, found.half) == (True, False)
