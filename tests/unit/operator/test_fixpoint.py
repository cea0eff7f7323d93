"""Properties of all decisions: a fixpoint is reached at once, and a gang is there as a whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from operator_parts import NOW, a_pod, ended, job, seen
from orchestra.kube.pods import Condition
from orchestra.operator.decide import decide
from orchestra.operator.decision import Decision, Observation
from orchestra.operator.kinds import PodObject, PodSpec
from orchestra.plan import status

PHASES = [None, "Pending", "Queued", "Provisioning", "Running", "Suspended", "Succeeded", "Failed"]


@st.composite
def pods(draw: Any) -> PodObject:
    index, attempt = draw(st.integers(0, 1)), draw(st.integers(0, 2))
    if draw(st.booleans()):
        return ended(index, draw(st.sampled_from(["done", "stopped", "failed", "hang"])), attempt)
    pod = a_pod(index, draw(st.sampled_from(["Pending", "Running"])), attempt, leaving=draw(st.booleans()))
    if draw(st.booleans()):
        when = status.timestamp(NOW - draw(st.integers(0, 300)))
        bound = Condition(type="PodScheduled", status="True", last_transition_time=when)
        pod = msgspec.structs.replace(pod, spec=PodSpec(node_name="n"))
        return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=(bound,)))
    return pod


@st.composite
def worlds(draw: Any) -> Observation:
    spec: dict[str, Any] = {"suspend": draw(st.booleans())}
    made = job(draw(st.sampled_from(PHASES)), draw(st.integers(0, 2)), draw(st.booleans()), **spec)
    there = draw(st.lists(pods(), max_size=4))
    silence = draw(st.sampled_from([None, "no answer"]))
    return replace(seen(made, *there), progress_silence=silence, cancelled=draw(st.booleans()))


def acts(made: Decision) -> bool:
    return bool(made.create or made.replace or made.delete or made.stop or made.delete_job)


def after(world: Observation, made: Decision) -> Observation:
    return replace(world, job=msgspec.structs.replace(world.job, status=made.status))


@given(worlds())
def test_where_nothing_is_to_be_done_nothing_is_to_be_said_twice(world: Observation) -> None:
    """One step after the status is written, the same world brings no other status and no event: no write storms."""
    first = decide(world, NOW)
    if acts(first):
        return
    moved = status.status_of(world.job).phase != first.status.phase
    second = decide(after(world, first), NOW)
    if moved or acts(second):  # a new phase may have a next step of its own, but that one must rest
        second, first = decide(after(world, second), NOW), second
        if acts(second) or acts(first):
            return
    assert second.events == ()
    assert _plain(second) == _plain(first)


@given(worlds())
def test_a_gang_is_created_as_a_whole_or_not_at_all(world: Observation) -> None:
    made = decide(world, NOW)
    attempt = made.status.attempt
    mine = [pod for pod in world.pods if pod.is_worker and pod.attempt == attempt]
    if made.create:
        assert not made.delete or all(pod.attempt != attempt for pod in made.delete), "made and removed at once"
        assert not any(pod.leaving for pod in mine), "nobody joins those who go"
        assert made.status.phase in ("Provisioning", "Running")
    gone = [pod for pod in made.delete if pod.is_worker and pod.attempt == attempt]
    if gone:
        left = [pod for pod in mine if not pod.ended and not pod.leaving and pod not in gone]
        assert left == [], "what is taken back is taken back as a whole"


def test_a_store_that_was_not_created_before_a_crash_is_created_and_not_taken_for_lost() -> None:
    workers = (a_pod(0, "Pending"), a_pod(1, "Pending"))
    world = replace(seen(job("Provisioning", 1, created=False)), pods=workers)
    made = decide(world, NOW)
    assert (made.create, made.status.attempt, made.status.phase) == (True, 1, "Provisioning")


def _plain(made: Decision) -> Any:
    plain = msgspec.to_builtins(made.status)
    return {**plain, "conditions": sorted(plain.get("conditions", []), key=lambda one: one["type"])}
