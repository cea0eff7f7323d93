"""The queue's template and the job's changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_cpu_queue, a_job, a_queue
from orchestra.api import Invalid
from orchestra.plan import plan
from orchestra.plan.merge import merge, template_of

_NAMES = st.sampled_from(["A", "B", "C"])
_ENV = st.lists(
    st.builds(lambda n, v: {"name": n, "value": v}, _NAMES, st.text(max_size=5)),
    max_size=3,
    unique_by=lambda e: e["name"],
)
_QUEUES = st.fixed_dictionaries(
    {},
    optional={
        "image": st.just("image:1"),
        "env": _ENV,
        "storage": st.fixed_dictionaries(
            {}, optional={"workspace": st.just({"enabled": True}), "checkpoints": st.just({"sizePerGPU": "1Gi"})}
        ),
        "scheduling": st.fixed_dictionaries(
            {}, optional={"priorityClassName": st.just("p"), "nodeSelector": st.just({"a": "b"})}
        ),
        "lifecycle": st.fixed_dictionaries({}, optional={"maxRestarts": st.integers(0, 9)}),
        "distributed": st.fixed_dictionaries({}, optional={"backend": st.sampled_from(["nccl", "gloo"])}),
        "podTemplate": st.just({"spec": {"dnsPolicy": "Default"}}),
    },
)


@given(spec=_QUEUES, gpus=st.integers(1, 8))
def test_a_job_without_overrides_equals_the_queues_template(spec: dict[str, Any], gpus: int) -> None:
    queue = a_queue(**spec)
    assert plan(queue, a_job(numGPUs=gpus)).template == template_of(queue.spec)


@given(spec=_QUEUES, env=_ENV, gpus=st.integers(1, 64))
def test_planning_is_deterministic(spec: dict[str, Any], env: list[dict[str, str]], gpus: int) -> None:
    def outcome() -> object:
        try:
            return plan(a_queue(**spec), a_job(numGPUs=gpus, env=env))
        except Invalid as invalid:
            return invalid.problems

    assert outcome() == outcome()


@given(base=_ENV, over=_ENV)
def test_lists_merge_by_name_and_the_job_wins(base: list[dict[str, str]], over: list[dict[str, str]]) -> None:
    made = plan(a_cpu_queue(env=base), a_job(env=over))
    wanted = {e["name"]: e["value"] for e in base} | {e["name"]: e["value"] for e in over}
    assert {one.name: one.value for one in made.template.env} == wanted
    assert {name: made.nodes[0].env[name] for name in wanted} == wanted


@given(st.recursive(st.dictionaries(_NAMES, st.integers()), lambda inner: st.dictionaries(_NAMES, inner)))
def test_merging_nothing_or_itself_changes_nothing(tree: dict[str, Any]) -> None:
    assert merge(tree, {}) == tree
    assert merge(tree, tree) == tree


def test_maps_merge_scalars_replace_and_mounts_go_by_place() -> None:
    base = {"nodeSelector": {"a": "1", "b": "2"}, "mounts": [{"name": "x", "mountPath": "/a"}], "modes": ["A"], "n": 1}
    over = {"nodeSelector": {"b": "3"}, "mounts": [{"name": "x", "mountPath": "/b"}], "modes": ["B"], "n": 2}
    assert merge(base, over) == {
        "nodeSelector": {"a": "1", "b": "3"},
        "mounts": [{"name": "x", "mountPath": "/a"}, {"name": "x", "mountPath": "/b"}],
        "modes": ["B"],
        "n": 2,
    }


def test_affinity_is_replaced_kind_by_kind_so_that_nothing_is_widened() -> None:
    queue = a_cpu_queue(scheduling={"affinity": {"nodeAffinity": {"terms": [{"a": 1}]}, "podAffinity": {"x": 1}}})
    made = plan(queue, a_job(overrides={"affinity": {"nodeAffinity": {"terms": [{"b": 2}]}}}))
    assert made.template.scheduling is not None
    assert made.template.scheduling.affinity == {"nodeAffinity": {"terms": [{"b": 2}]}, "podAffinity": {"x": 1}}


def test_overrides_and_flat_spellings_land_in_the_template() -> None:
    job = a_job(
        numGPUs=8, image="other", maxRestarts=7, ttlSecondsAfterFinished=5,
        overrides={"priorityClassName": "urgent", "tolerations": [{"key": "t"}], "nodeResources": {"cpus": 10}},
    )  # fmt: skip
    made = plan(a_queue(scheduling={"priorityClassName": "low", "tolerations": [{"key": "q"}]}), job)
    scheduling = made.template.scheduling
    assert scheduling is not None
    assert scheduling.priority_class_name == "urgent"
    assert [t.key for t in scheduling.tolerations] == ["q", "t"]
    assert made.template.image == "other"
    assert (made.lifecycle.max_restarts, made.lifecycle.ttl_seconds_after_finished) == (7, 5)
    assert str(made.resources.cpu) == "10"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"overrides": {"serviceAccountName": "admin"}}, "spec.overrides.serviceAccountName"),
        ({"overrides": {"securityContext": {"runAsUser": 0}}}, "spec.overrides.securityContext"),
        ({"overrides": {"network": {"hostNetwork": True}}}, "spec.overrides.network.hostNetwork"),
        ({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, "spec.volumes[0].hostPath"),
        ({"overrides": {"podTemplate": {"spec": {"hostPID": True}}}}, "spec.overrides.podTemplate.spec.hostPID"),
        (
            {
                "overrides": {
                    "podTemplate": {
                        "spec": {"containers": [{"name": "trainer", "securityContext": {"privileged": True}}]}
                    }
                }
            },
            "spec.overrides.podTemplate.spec.containers[0].securityContext",
        ),
    ],
)
def test_what_could_reach_beyond_the_pod_must_be_allowed_by_name(spec: dict[str, Any], path: str) -> None:
    for allowed in ({}, {"overridesAllowed": ["*"]}, {"overridesAllowed": ["overrides", "volumes"]}):
        with pytest.raises(Invalid) as caught:
            plan(a_cpu_queue("strict", **allowed), a_job(**spec))
        assert path in [problem.path for problem in caught.value.problems]
        assert "strict" in caught.value.problems[0].reason
    by_name = path.removeprefix("spec.").split("[")[0]
    named = a_cpu_queue(overridesAllowed=["*", by_name, path.removeprefix("spec."), path.rsplit(".", 1)[1]])
    assert plan(named, a_job(**spec))


def test_a_list_of_allowed_fields_bounds_the_rest() -> None:
    queue = a_cpu_queue(overridesAllowed=["env", "nodeSelector"])
    assert plan(queue, a_job(env=[{"name": "A", "value": "1"}], overrides={"nodeSelector": {"a": "b"}}))
    with pytest.raises(Invalid) as caught:
        plan(queue, a_job(image="x", overrides={"priorityClassName": "p"}, maxRestarts=1))
    assert {p.path for p in caught.value.problems} == {
        "spec.image", "spec.overrides.priorityClassName", "spec.maxRestarts",
    }  # fmt: skip
