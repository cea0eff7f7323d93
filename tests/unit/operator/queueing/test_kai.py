"""A KAI Queue as a TorchrunQueue describes it: KAI's units, and nothing left to KAI's own defaults."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builders import a_queue
from orchestra.kube.objects import Metadata
from orchestra.operator.queueing import kai
from orchestra.operator.queueing.checks import missing_references, trial_pod
from orchestra.operator.queueing.findings import Census, Finding, in_use, only_counts_differ, status_json
from orchestra.operator.queueing.kinds import Classes
from orchestra.operator.queueing.lines import limits_of
from orchestra.plan.pod_template import pod_template_problems

OWNER = Metadata(name="team", namespace="ns", uid="u")


def test_all_three_resources_are_always_written_also_zeros() -> None:
    body = kai.queue_body("team", kai.wanted(a_queue(resources={"gpu": {"quota": 0, "limit": 0}}).spec), OWNER)
    assert body["spec"]["resources"]["gpu"] == {"quota": 0, "limit": 0, "overQuotaWeight": 1}
    assert body["spec"]["resources"]["cpu"] == {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    assert body["spec"]["resources"]["memory"] == {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    assert body["spec"]["parentQueue"] == "default"
    assert body["metadata"]["annotations"] == {"torchrun.ai/owner": "ns/team", "torchrun.ai/owner-uid": "u"}


@pytest.mark.parametrize(
    ("kind", "given", "units"),
    [("cpu", "250m", 250), ("cpu", 96, 96000), ("memory", "512Gi", 549756), ("memory", "1M", 1), ("memory", "1", 1),
     ("gpu", "-5", -1)],
)  # fmt: skip
def test_units_are_kais_and_rounded_up_so_that_what_fits_exactly_fits(kind: str, given: Any, units: int) -> None:
    wanted = kai.wanted(a_queue(resources={kind: {"limit": given}}).spec)
    assert msgspec.to_builtins(wanted.resources)[kind]["limit"] == units


def test_differences_are_told_as_fields() -> None:
    one = kai.wanted(a_queue(resources={"gpu": {"quota": 8}}).spec)
    two = kai.wanted(a_queue(resources={"gpu": {"quota": 4}}, parentKaiQueue="top").spec)
    assert kai.differences(one, two) == "parent top and not default, gpu.quota 4 and not 8"


def test_the_operator_keeps_limits_only_where_kai_does_not() -> None:
    share = {"gpu": {"limit": 8}, "cpu": {"limit": "1500m"}, "memory": {"limit": "1Gi"}}
    assert limits_of(a_queue(resources=share).spec) == (8, 1500, 2**30)
    assert limits_of(a_queue(resources=share, kaiQueue="team").spec) == (-1, -1, -1)


def test_a_trial_pod_leaves_out_what_only_the_jobs_namespace_has() -> None:
    queue = a_queue(serviceAccountName="robot", scheduling={"priorityClassName": "high", "nodeSelector": {"a": "b"}})
    pod = trial_pod("q", queue.spec)
    assert isinstance(pod, dict)
    assert "ownerReferences" not in pod["metadata"]
    assert not {"serviceAccountName", "priorityClassName"} & pod["spec"].keys()
    assert pod["spec"]["nodeSelector"] == {"a": "b"}
    assert pod["spec"]["containers"][0]["image"]


def test_nothing_is_said_about_classes_that_the_operator_may_not_see() -> None:
    assert missing_references(a_queue(scheduling={"priorityClassName": "high"}).spec, Classes(None, None)) == []


@pytest.mark.parametrize(
    ("template", "where"),
    [
        ({"kind": "Pod"}, "spec.podTemplate.kind"),
        ({"spec": []}, "spec.podTemplate.spec"),
        ({"metadata": {"labels": {"a": 1}}}, "spec.podTemplate.metadata.labels"),
        ({"spec": {"volumes": {"name": "x"}}}, "spec.podTemplate.spec.volumes"),
        ({"spec": {"containers": [{"name": "a"}, "b"]}}, "spec.podTemplate.spec.containers[1]"),
        ({"spec": {"containers": [{"name": "trainer", "volumeMounts": 1}]}}, "containers[0].volumeMounts"),
    ],
)
def test_a_pod_template_of_the_wrong_shape_is_told_with_its_place(template: dict[str, Any], where: str) -> None:
    (problem,) = pod_template_problems(template)
    assert problem.path.endswith(where)


def test_an_unchanged_status_keeps_its_times_and_counts_alone_are_told_apart() -> None:
    fine, now = [Finding("Valid", True, "Valid", "nothing is wrong")], 1_800_000_000.0

    def made(before: dict[str, Any], used: int, later: float) -> dict[str, Any]:
        return status_json(
            before, fine, Census(gpus=used), quota=4, kai=None, generation=1, deleting=False, now=now + later
        )

    first = made({}, 0, 0)
    assert made(first, 0, 100) == first
    assert only_counts_differ(first, made(first, 8, 100))
    bad = status_json(first, [Finding("Valid", False, "Invalid", "no")], Census(), quota=4, kai=None, generation=2,
                      deleting=False, now=now + 50)  # fmt: skip
    assert not only_counts_differ(first, bad)
    assert bad["phase"] == "Invalid"


def test_a_queue_in_use_names_a_few_of_its_jobs() -> None:
    assert in_use(Census(unfinished=("a",))).message.startswith("1 unfinished job uses this queue: a;")
    many = tuple(f"j{number}" for number in range(9))
    assert "j0, j1, j2, j3, j4 and 4 more" in in_use(Census(unfinished=many)).message
