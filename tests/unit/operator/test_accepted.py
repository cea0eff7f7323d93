"""What the API server cannot guard stays what the job was started with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from builders import a_job
from operator_parts import NOW, a_pod, job, seen
from orchestra.api.base import from_builtins, to_builtins
from orchestra.api.job import TorchrunJob, TorchrunJobSpec
from orchestra.operator import accepted
from orchestra.operator.decide import decide
from orchestra.plan import status


def changed(before: TorchrunJob, **spec: Any) -> TorchrunJob:
    return msgspec.structs.replace(before, spec=from_builtins(to_builtins(before.spec) | spec, TorchrunJobSpec))


def running() -> TorchrunJob:
    started = decide(seen(job()), NOW).status
    return status.with_status(job("Running", 1), accepted=started.accepted)


def test_the_unguarded_fields_are_those_that_no_schema_can_type() -> None:
    assert {"command", "setupCommand", "volumes", "volumeMounts", "overrides"} <= set(accepted.unguarded())
    assert not {"image", "numGPUs", "suspend", "lifecycle"} & set(accepted.unguarded())


def test_an_attempt_that_starts_writes_down_what_it_was_started_with() -> None:
    assert decide(seen(job()), NOW).status.accepted == {"command": "python train.py"}


def test_a_running_job_keeps_its_command_and_says_how_to_change_it() -> None:
    taken, problems = accepted.effective(changed(running(), command="python other.py"))
    assert taken.spec.command == "python train.py"
    made = decide(replace(seen(taken, a_pod(0), a_pod(1)), not_taken=tuple(problems)), NOW)
    said = next(c for c in made.status.conditions if c.type == "ChangesTaken")
    assert said.status == "False"
    assert "spec.command" in (said.message or "")
    assert "set suspend: true first" in (said.message or "")
    assert made.status.phase == "Running"
    mended, problems = accepted.effective(running())
    again = decide(replace(seen(mended, a_pod(0), a_pod(1)), not_taken=tuple(problems)), NOW)
    assert not any(c.type == "ChangesTaken" for c in again.status.conditions)


def test_a_suspended_job_takes_a_new_command_and_no_new_volumes() -> None:
    resting = status.in_phase(running(), "Suspended", "Suspended", "saved", NOW)
    taken, problems = accepted.effective(changed(resting, command=["python", "other.py"], volumes=[{"name": "x"}]))
    assert taken.spec.command == ["python", "other.py"]
    assert taken.spec.volumes == []
    assert [problem.path for problem in problems] == ["spec.volumes"]
    resumed = decide(seen(taken), NOW)
    assert resumed.status.accepted == {"command": ["python", "other.py"]}


def test_before_its_first_attempt_a_job_may_change_as_it_likes() -> None:
    waiting = status.in_phase(a_job(numGPUs=16), "Queued", "QueueLimit", "waits", NOW)
    assert accepted.effective(changed(waiting, command="python other.py"))[1] == []


def test_an_attempt_under_way_has_the_size_it_was_started_with() -> None:
    observed = seen(status.with_status(running(), nodes=2), a_pod(0), a_pod(1))
    assert observed.plan is not None
    larger = msgspec.structs.replace(observed.plan, node_count=4, min_nodes=4, max_nodes=4)
    kept = accepted.started_with(larger, observed.job)
    assert (kept.node_count, kept.max_nodes) == (2, 2)


def test_a_queue_that_no_longer_fits_ends_no_running_job() -> None:
    observed = replace(seen(running(), a_pod(0), a_pod(1)), plan=None, queue_missing=True)
    made = decide(observed, NOW)
    assert (made.status.phase, made.delete) == ("Running", ())
