"""The small pure parts of the kubernetes engine."""

from __future__ import annotations

import msgspec
import pytest

from orchestra.api import labels
from orchestra.api.engine import EngineError, LogQuery, NotFound
from orchestra.api.problem import Invalid
from orchestra.cli.selectors import matches
from orchestra.cluster.engine import difference
from orchestra.cluster.foreign import in_role
from orchestra.cluster.kinds import Pod
from orchestra.cluster.log_lines import Place, read_line, wanted
from orchestra.cluster.refusals import told
from orchestra.cluster.submitting import contains, folder_mark
from orchestra.kube.errors import ApiError, Unreachable, refusal_of
from orchestra.operator import rights

# ---- logs


def test_a_line_of_the_kubelet_is_a_rank_and_its_text() -> None:
    line = read_line(b"2026-11-15T20:00:00.5Z [r12] loss 0.5 [x]", Place())
    assert line is not None
    assert (line.rank, line.source, line.text, line.time % 60) == (12, "r12", "loss 0.5 [x]", 0.5)
    line = read_line(b"2026-11-15T21:00:00.5+01:00 [agent] up", Place())
    assert line is not None
    assert (line.rank, line.source, line.time % 60) == (None, "agent", 0.5)
    line = read_line(b"2026-11-15T20:00:00.5Z sh: 1: exec: python3: not found", Place())
    assert line is not None
    assert (line.source, line.text) == ("setup", "sh: 1: exec: python3: not found")
    assert read_line(b"no stamp", Place()) is None
    line = read_line(b"2026-11-15T20:00:00Z ", Place())
    assert line is not None
    assert line.text == ""


def test_a_log_that_is_reopened_gives_no_line_twice_and_leaves_none_out() -> None:
    place = Place()
    first = [b"2026-11-15T20:00:00.1Z [r0] a", b"2026-11-15T20:00:00.2Z [r0] b", b"2026-11-15T20:00:00.2Z [r0] c"]
    again = [*first, b"2026-11-15T20:00:00.2Z [r0] d", b"2026-11-15T20:00:00.3Z [r0] e"]
    assert [line.text for raw in first if (line := read_line(raw, place))] == ["a", "b", "c"]
    assert place.second == "2026-11-15T20:00:00Z"
    place.reopened()
    assert [line.text for raw in again if (line := read_line(raw, place))] == ["d", "e"]
    place.reopened()
    assert [line.text for raw in again if (line := read_line(raw, place))] == []


def a_pod(name: str, **labels: str) -> Pod:
    return msgspec.convert({"metadata": {"name": name, "labels": {a.replace("__", "/").replace("_", "-"): b for a, b in labels.items()}}}, Pod)  # fmt: skip


@pytest.mark.parametrize(
    ("pods", "first"),
    [
        ([a_pod("a-0", torchrun_node_index="0"), a_pod("a-1", torchrun_node_index="1")], "a-0"),
        ([a_pod("a-1", torchrun_node_index="1"), a_pod("a-0-r2", torchrun_node_index="0")], "a-0-r2"),
        (
            [
                a_pod("w", **{"training.kubeflow.org__replica_type": "worker"}),
                a_pod("m", **{"training.kubeflow.org__replica_type": "master"}),
            ],
            "m",
        ),
        (
            [
                a_pod("n", **{"jobset.sigs.k8s.io__replicatedjob_name": "node"}),
                a_pod("l", **{"jobset.sigs.k8s.io__replicatedjob_name": "launcher"}),
            ],
            "l",
        ),
    ],
)
def test_the_first_node_is_the_master_and_the_others_are_workers(pods: list[Pod], first: str) -> None:
    others = {pod.metadata.name for pod in pods} - {first}
    assert [pod.metadata.name for pod in in_role(pods, "master")] == [first]
    assert {pod.metadata.name for pod in in_role(pods, "worker")} == others
    assert in_role(pods, None) == pods


def test_a_query_chooses() -> None:
    place = Place()
    raws = [b"2026-11-15T20:00:01Z [r0] one", b"2026-11-15T20:00:02Z [r1] two", b"2026-11-15T20:00:03Z [agent] three"]
    lines = [line for raw in raws if (line := read_line(raw, place))]
    assert [line.text for line in filter(wanted(LogQuery(ranks=[1])), lines)] == ["two"]
    assert [line.text for line in filter(wanted(LogQuery(grep="^t")), lines)] == ["two", "three"]
    assert [line.text for line in filter(wanted(LogQuery(since=lines[2].time)), lines)] == ["three"]


# ---- refusals


def refusal(code: int, message: str, causes: str = "[]", reason: str = "R") -> ApiError:
    body = f'{{"code":{code},"reason":"{reason}","message":"{message}","details":{{"causes":{causes}}}}}'
    return ApiError("POST /x", refusal_of(code, body.encode()))


def test_a_refusal_of_the_schema_has_its_fields_and_our_own_words() -> None:
    causes = """[{"field":"spec.numGPUs","message":"Invalid value: \\"object\\": numGPUs and numNodes are both given; keep one"},
                 {"field":"spec.numNodes","message":"Invalid value: 0: spec.numNodes in body should be greater than or equal to 1"}]"""
    made = told(refusal(422, "m", causes), "https://c")
    assert isinstance(made, Invalid)
    assert [(one.path, one.reason, one.mend) for one in made.problems] == [
        ("spec.numGPUs", "numGPUs and numNodes are both given", "keep one"),
        ("spec.numNodes", "0: spec.numNodes in body should be greater than or equal to 1", ""),
    ]


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (refusal(401, "Unauthorized"), EngineError, "log in again"),
        (refusal(403, "jobs is forbidden: User x cannot create"), EngineError, "orchestra-user"),
        (refusal(403, "admission webhook x denied the request: no"), EngineError, "the cluster refused: admission"),
        (refusal(404, "the server could not find the requested resource"), EngineError, "orchestra install"),
        (refusal(404, "torchrunjobs x not found"), NotFound, "not found"),
        (refusal(500, "etcd"), EngineError, "500"),
        (Unreachable("GET /x: ConnectionRefusedError: no"), EngineError, "--local"),
    ],
)
def test_each_refusal_says_what_to_do(error: ApiError | Unreachable, kind: type[Exception], words: str) -> None:
    made = told(error, "https://c")
    assert type(made) is kind
    assert words in str(made)


# ---- patches, queues, folders, selectors


def test_a_merge_patch_from_one_spec_to_another() -> None:
    old = {"numGPUs": 8, "command": ["a"], "lifecycle": {"maxRestarts": 1, "restartPolicy": "Never"}}
    new = {"numNodes": 2, "command": ["a", "b"], "lifecycle": {"maxRestarts": 2, "restartPolicy": "Never"}}
    expected = {"numGPUs": None, "numNodes": 2, "command": ["a", "b"], "lifecycle": {"maxRestarts": 2}}
    assert difference(old, new) == expected
    assert difference(old, old) == {}


def test_a_queue_file_that_says_what_is_there_needs_no_right_to_write() -> None:
    there = {"image": "a", "nodeResources": {"gpus": 8, "memory": "1Gi"}, "kaiQueue": "x", "env": [{"name": "A"}]}
    assert contains(there, {"image": "a", "nodeResources": {"gpus": 8}, "env": [{"name": "A"}]})
    assert not contains(there, {"image": "b"})
    assert not contains(there, {"env": []})


def test_a_folder_is_marked_without_its_path() -> None:
    assert folder_mark("/a") == folder_mark("/a") != folder_mark("/b")
    assert len(folder_mark("/" + "x" * 500)) == 32


@pytest.mark.parametrize(
    ("selector", "yes"),
    [("", True), ("team=a", True), ("team==a,x", True), ("team!=a", False), ("!team", False), ("!no", True),
     ("team in (a, b),x=1", True), ("team notin (a)", False), ("no=1", False)],
)  # fmt: skip
def test_selectors_choose_as_kubectl_does(selector: str, yes: bool) -> None:
    assert matches(selector, {"team": "a", "x": "1"}) is yes


def test_what_is_no_selector_is_refused() -> None:
    with pytest.raises(EngineError, match="no label selector"):
        matches("a b", {})


def test_doctor_looks_where_the_operator_is() -> None:
    assert (labels.OPERATOR_NAMESPACE, labels.OPERATOR_NAME) == (rights.NAMESPACE, rights.NAME)
