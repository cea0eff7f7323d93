"""Our CRDs on a real API server: the same verdict, in the same words, as `orchestra validate`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import a_job
from orchestra.api.base import to_builtins
from orchestra.api.changes import forbidden_changes
from orchestra.api.load import load_text
from testbed.api import Api, ApiError
from testbed.control_plane import ControlPlane
from testbed.programs import programs

pytestmark = pytest.mark.usefixtures("crds")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def path_of(kind: str, namespace: str) -> str:
    return f"/apis/torchrun.ai/v1alpha1/namespaces/{namespace}/{kind.lower()}s"


def job(name: str = "job", **spec: Any) -> dict[str, Any]:
    spec = {"jobQueue": "q", "command": "python train.py"} | spec
    return {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunJob", "metadata": {"name": name}, "spec": spec}


def queue(name: str = "queue", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunQueue", "metadata": {"name": name}, "spec": spec}


def refusal(api: Api, namespace: str, manifest: dict[str, Any]) -> str | None:
    """What the API server says against an object; None when it takes it."""
    try:
        api.create(path_of(manifest["kind"], namespace), manifest, dryRun="All")
    except ApiError as error:
        if error.status not in (400, 422):
            raise
        return str(error)
    return None


def change_refusal(api: Api, namespace: str, spec: dict[str, Any]) -> str | None:
    try:
        api.patch(f"{path_of('TorchrunJob', namespace)}/job", {"spec": spec}, dryRun="All")
    except ApiError as error:
        return str(error)
    return None


def local_problems(manifest: dict[str, Any]) -> list[str]:
    return [problem.words for problem in load_text(json.dumps(manifest), "f.json").problems]


@pytest.mark.parametrize("example", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_accepted_as_it_is(control_plane: ControlPlane, namespace: str, example: Path) -> None:
    for manifest in yaml.safe_load_all(example.read_text()):
        assert refusal(control_plane.admin, namespace, manifest) is None


@pytest.mark.parametrize(
    "manifest",
    [
        job("Upper"), job("1st"), job("a" * 49), job("my-sync"), job("my-rdzv"), job("under-"), job("dotted.name"),
        job(numGPUs=8, numNodes=1), job(numGPUs=8, gpusPerNode=2), job(numGPUs=8, procsPerNode=2),
        job(elastic={"minNodes": 3, "maxNodes": 2}), job(numNodes=5, elastic={"minNodes": 1, "maxNodes": 2}),
        job(elastic={}, distributed={"rdzvBackend": "static"}), job(workspace={"source": "git"}),
        job(secrets=[{"name": "s", "env": "X"}]), job(maxRestarts=1, lifecycle={"maxRestarts": 2}),
        job(env=[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]),
        queue("x" * 64), queue(kaiQueue="a", parentKaiQueue="a"),
        queue(kaiQueue="a", scheduling={"gang": "coscheduling"}),
        queue(storage={"workspace": {"source": "s3"}}),
    ],
    ids=lambda m: f"{m['metadata']['name'][:12]}-{'-'.join(m['spec'])}",
)  # fmt: skip
def test_rules_are_refused_with_the_words_of_validate(
    control_plane: ControlPlane, namespace: str, manifest: dict[str, Any]
) -> None:
    said = refusal(control_plane.admin, namespace, manifest)
    ours = local_problems(manifest)
    assert ours
    assert said is not None
    if (
        "metadata.name" not in said or "RFC 1123" not in said
    ):  # the server has words of its own for names no object can have
        assert any(words in said for words in ours), (said, ours)


@pytest.mark.parametrize(
    "spec",
    [
        {"numGPUs": 0}, {"numGPUs": -4}, {"numGPUs": 1.5}, {"numGPUs": "8"}, {"launcher": "mpirun"}, {"env": {"A": "b"}},
        {"lifecycle": {"maxRestarts": -1}}, {"workingDir": "relative"}, {"distributed": {"port": 70000}},
        {"overrides": {"nodeResources": {"memory": "lots"}}}, {"suspend": "yes"}, {"jobQueue": ""}, {"jobQueue": "Not_A_Name"},
    ],
    ids=str,
)  # fmt: skip
def test_types_and_bounds_are_refused_by_both(
    control_plane: ControlPlane, namespace: str, spec: dict[str, Any]
) -> None:
    assert local_problems(job(**spec))
    assert refusal(control_plane.admin, namespace, job(**spec)) is not None


_SMALL = st.integers(-1, 4)
_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "numGPUs": _SMALL, "numNodes": _SMALL, "gpusPerNode": _SMALL, "procsPerNode": _SMALL,
        "elastic": st.fixed_dictionaries({}, optional={"minNodes": _SMALL, "maxNodes": _SMALL}),
        "maxRestarts": _SMALL,
        "lifecycle": st.fixed_dictionaries({}, optional={"maxRestarts": _SMALL, "activeDeadlineSeconds": _SMALL}),
        "distributed": st.fixed_dictionaries(
            {}, optional={"rdzvBackend": st.sampled_from(["c10d", "static", "etcd"]), "port": st.sampled_from([0, 29500])}
        ),
        "workspace": st.fixed_dictionaries(
            {}, optional={"source": st.sampled_from(["local", "git", "s3", "svn"]), "url": st.just("u")}
        ),
        "secrets": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["a", "A", ""])},
                                                  optional={"key": st.just("k"), "env": st.sampled_from(["E", "1"])}), max_size=2),
        "storage": st.fixed_dictionaries({}, optional={"shmSizePerGPU": st.sampled_from([1, "8Gi", "8 Gi", "1e3", "-"])}),
        "workingDir": st.sampled_from(["/x", "x", ""]),
        "labels": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y" * 64, ""])),
    },
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(["job", "j", "job-sync", "Job", "a" * 48, "a" * 49]), spec=_SPECS)
def test_validate_and_the_api_server_always_agree(
    control_plane: ControlPlane, namespace: str, name: str, spec: dict[str, Any]
) -> None:
    manifest = job(name, **spec)
    said, ours = refusal(control_plane.admin, namespace, manifest), local_problems(manifest)
    assert bool(said) == bool(ours), (said, ours)


def test_unknown_fields_are_pruned_with_a_warning(control_plane: ControlPlane, namespace: str) -> None:
    made = control_plane.admin.create(path_of("TorchrunJob", namespace), job(numGpus=4))
    assert "numGpus" not in made["spec"]
    kubectl = [
        str(programs("kubectl")["kubectl"]),
        "--kubeconfig",
        str(control_plane.admin_kubeconfig),
        "-n",
        namespace,
    ]
    text = yaml.safe_dump(job("warned", numGpus=4))
    warned = subprocess.run(
        [*kubectl, "create", "-f", "-", "--validate=warn"], input=text, capture_output=True, text=True, check=True
    )
    assert 'unknown field "spec.numGpus"' in warned.stderr
    listed = subprocess.run([*kubectl, "get", "tj"], capture_output=True, text=True, check=True).stdout
    assert listed.split("\n")[0].split() == ["NAME", "QUEUE", "GPUS", "NODES", "PHASE", "PROGRESS", "RESTARTS", "AGE"]
    explained = subprocess.run(
        [*kubectl, "explain", "torchrunjob.spec.numGPUs"], capture_output=True, text=True, check=True
    ).stdout
    assert "GPUs in all; the nodes follow from the queue." in explained


def test_the_server_fills_in_a_queues_defaults_but_not_in_a_jobs_blocks(
    control_plane: ControlPlane, namespace: str
) -> None:
    made = control_plane.admin.create(
        path_of("TorchrunQueue", namespace), queue(storage={"checkpoints": {}}, lifecycle={})
    )
    assert made["spec"]["storage"]["checkpoints"] == {"mountPath": "/out", "retain": True, "sizePerGPU": "50Gi"}
    assert made["spec"]["lifecycle"]["maxRestarts"] == 3
    assert made["spec"]["resources"]["gpu"] == {"limit": -1, "overQuotaWeight": 1, "quota": -1}
    assert made["spec"]["parentKaiQueue"] == "default"
    made = control_plane.admin.create(
        path_of("TorchrunJob", namespace), job(storage={"checkpoints": {}}, lifecycle={}, elastic={})
    )
    assert made["spec"]["storage"] == {"checkpoints": {}}
    assert made["spec"]["lifecycle"] == {}
    assert made["spec"]["elastic"] == {"minNodes": 1}
    assert made["spec"]["suspend"] is False


CHANGES: list[dict[str, Any]] = [
    {"suspend": True}, {"maxRestarts": 9}, {"lifecycle": {"activeDeadlineSeconds": 5}}, {"elastic": {"minNodes": 1}},
    {"workspace": {"snapshot": "abc"}}, {"workspace": {"source": "git", "url": "u"}}, {"numNodes": 2}, {"procsPerNode": 4},
    {"image": "new"}, {"env": [{"name": "A", "value": "1"}]}, {"jobQueue": "other"}, {"launcher": "none"},
    {"storage": {"shmSizePerGPU": "1Gi"}}, {"labels": {"a": "b"}}, {"sync": {"data": "s3://bucket"}},
    {"secrets": [{"name": "s"}]}, {"workingDir": "/x"}, {"distributed": {"backend": "gloo"}},
    {"environment": {"requirements": "r.txt"}},
]  # fmt: skip


@pytest.mark.parametrize("suspended", [False, True])
def test_the_server_lets_change_what_may_change(control_plane: ControlPlane, namespace: str, suspended: bool) -> None:
    api, path = control_plane.admin, path_of("TorchrunJob", namespace)
    api.create(path, job(suspend=suspended))
    for change in CHANGES:
        before, after = a_job(suspend=suspended), a_job(**{"suspend": suspended} | change)
        ours = [problem.words for problem in forbidden_changes(before.spec, after.spec)]
        patch = to_builtins(after.spec) | change | {"jobQueue": change.get("jobQueue", "q")}
        said = change_refusal(api, namespace, patch)
        assert bool(said) == bool(ours), (change, said, ours)
        assert said is None or any(words in said for words in ours), (change, said, ours)


def test_a_status_can_be_written_and_conditions_are_kept_by_type(control_plane: ControlPlane, namespace: str) -> None:
    api, path = control_plane.admin, path_of("TorchrunJob", namespace)
    api.create(path, job())
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "R",
        "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"phase": "Running", "conditions": [ready], "progress": {"step": 5, "loss": 0.25, "epoch": 1}}
    made = api.patch(f"{path}/job/status", {"status": status})
    assert made["status"]["progress"]["loss"] == 0.25
    with pytest.raises(ApiError, match="Duplicate value"):
        api.patch(f"{path}/job/status", {"status": {"conditions": [ready, ready]}})
    with pytest.raises(ApiError, match="Unsupported value"):
        api.patch(f"{path}/job/status", {"status": {"phase": "Sleeping"}})
