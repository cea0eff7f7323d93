"""Manifests: every mistake, with its place and its mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestra.api.load import Loaded, load, load_text

JOB = "apiVersion: torchrun.ai/v1alpha1\nkind: TorchrunJob\nmetadata: {name: job}\n"


def problems(text: str) -> list[str]:
    return [str(problem) for problem in load_text(text, "f.yaml").problems]


def spec(lines: str) -> Loaded:
    return load_text(f"{JOB}spec:\n  jobQueue: q\n  command: python t.py\n{lines}", "f.yaml")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("  numGpus: 4", "f.yaml:7:3: spec.numGpus: unknown field; did you mean numGPUs?"),
        ("  num_gpus: 4", "f.yaml:7:3: spec.num_gpus: unknown field; did you mean numGPUs?"),
        ("  numGPUs: 0", "f.yaml:7:12: spec.numGPUs: 0 is too small; at least 1"),
        ("  numGPUs: -1", "f.yaml:7:12: spec.numGPUs: -1 is too small; at least 1"),
        ("  numGPUs: 1.5", "f.yaml:7:12: spec.numGPUs: must be a whole number, not 1.5"),
        ("  numGPUs: '8'", "f.yaml:7:12: spec.numGPUs: must be a whole number, not '8'"),
        ("  numGPUs: true", "f.yaml:7:12: spec.numGPUs: must be a whole number, not true"),
        ("  numGPUs:", "f.yaml:7:11: spec.numGPUs: is empty; give it a value or remove the line"),
        ("  image: 3", 'f.yaml:7:10: spec.image: must be a string, not 3; write it in quotes, "3"'),
        ("  launcher: torchrn", "f.yaml:7:13: spec.launcher: 'torchrn' is not known; did you mean torchrun?"),
        ("  env: {A: 1}", "f.yaml:7:8: spec.env: must be a list, not a map"),
        ("  env: [{nme: A}]", "f.yaml:7:10: spec.env[0].nme: unknown field; did you mean name?"),
        ("  workingDir: app", "f.yaml:7:15: spec.workingDir: 'app' is not allowed; must be an absolute path, beginning with /"),
        ("  overrides: {nodeResources: {memory: lots}}",
         "f.yaml:7:39: spec.overrides.nodeResources.memory: 'lots' is not a quantity; write a number such as 4, 500m or 512Gi"),
        ("  overrides: {nodeResources: {cpus: 1.5}}",
         'f.yaml:7:37: spec.overrides.nodeResources.cpus: 1.5 is a fraction; write it in quotes, "1.5"'),
        ("  elastic: {minNodes: 3, maxNodes: 2}", "f.yaml:7:3: spec.elastic: minNodes is larger than maxNodes; minNodes <= maxNodes"),
        ("  numGPUs: 8\n  numNodes: 1", "f.yaml:8:3: spec.numNodes: numGPUs and numNodes both give the size; keep one of them"),
        ("  maxRestarts: 1\n  lifecycle: {maxRestarts: 2}",
         "f.yaml:7:3: spec.maxRestarts: maxRestarts and lifecycle.maxRestarts disagree; keep one of them"),
        ("  image: a\n  image: b", "f.yaml:8:3: image is given twice; keep one (the first is in line 7)"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_place_reason_and_mend(line: str, said: str) -> None:
    assert said in [str(problem) for problem in spec(line + "\n").problems]


def test_mistakes_of_every_kind_are_reported_in_one_go() -> None:
    text = (
        "apiVersion: torchrun.ai/v1alpha1\nkind: TorchrunJob\nmetadata: {name: Job_1}\nspec:\n  jobQueue: q\n"
        "  numGpus: 4\n  env: [{name: A, value: 8}]\n  launcher: x\n  elastic: {minNodes: 3, maxNodes: 2}\n"
    )
    paths = [problem.path for problem in load_text(text, "f").problems]
    assert sorted(paths) == [
        "metadata.name", "spec.command", "spec.elastic", "spec.env[0].value", "spec.launcher", "spec.numGpus",
    ]  # fmt: skip


def test_a_broken_field_is_not_reported_twice_under_another_name() -> None:
    loaded = spec("  workspace: {source: git, url: [x]}\n")
    assert [problem.path for problem in loaded.problems] == ["spec.workspace.url"]


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("apiVersion: torchrun.ai/v1\nkind: TorchrunJob", "write torchrun.ai/v1alpha1"),
        ("apiVersion: torchrun.ai/v1alpha1\nkind: TorchRunJob", "did you mean TorchrunJob?"),
        ("apiVersion: torchrun.ai/v1alpha1\nkind: Pod", "'Pod' is not known"),
        ("kind: TorchrunJob", "apiVersion: is missing"),
        ("apiVersion: torchrun.ai/v1alpha1", "kind: is missing"),
    ],
)
def test_a_wrong_kind_or_version_is_told(head: str, said: str) -> None:
    assert any(said in problem for problem in problems(f"{head}\nmetadata: {{name: x}}\nspec: {{}}\n"))


@pytest.mark.parametrize(
    "text", ["a: [1", "a: b: c", "\tx: 1", "{", "'", "a: &x [*x]", "? {a: b}\n: c", "a: \x00", "%YAML 9"]
)
def test_text_that_is_no_yaml_is_an_error_and_never_a_traceback(text: str) -> None:
    assert problems(text)


def test_a_bomb_of_aliases_is_refused() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for previous, current in zip("abcdefg", "bcdefgh", strict=True):
        bomb += f"{current}: &{current} [{', '.join([f'*{previous}'] * 10)}]\n"
    assert "too deep or too large" in problems(bomb)[0]


def test_other_peoples_objects_are_named_and_left_alone() -> None:
    loaded = load_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n", "f.yaml")
    assert not loaded.problems
    assert loaded.foreign[0][1] == "v1 ConfigMap"


def test_a_list_object_and_json_are_read_too() -> None:
    item = '{"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunQueue", "metadata": {"name": "q"}, "spec": {}}'
    assert len(load_text(f'{{"apiVersion": "v1", "kind": "List", "items": [{item}]}}', "f.json").queues) == 1


def test_the_same_object_twice_is_told(tmp_path: Path) -> None:
    text = f"{JOB}spec: {{jobQueue: q, command: x}}\n"
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text(text)
    (problem,) = load([tmp_path]).problems
    assert "defined twice" in problem.reason
    assert "a.yaml:3" in problem.mend


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "absent.yaml", tmp_path / "binary.yaml"):
        assert "cannot be read" in load([path]).problems[0].reason
    assert "no *.yaml" in load([_empty(tmp_path)]).problems[0].reason


def _empty(folder: Path) -> Path:
    empty = folder / "empty"
    empty.mkdir()
    return empty


def test_yaml_is_read_as_kubernetes_reads_it() -> None:
    loaded = spec("  env:\n  - {name: A, value: 12:30:00}\n  - {name: B, value: 2024-01-01}\n")
    assert not loaded.problems
    job = loaded.jobs[0].object
    assert [one.value for one in job.spec.env] == ["12:30:00", "2024-01-01"]


def test_anchors_and_merge_keys_work() -> None:
    loaded = spec("  labels: &l {a: b}\n  annotations: {<<: *l, c: d}\n")
    assert not loaded.problems
    job = loaded.jobs[0].object
    assert job.spec.annotations == {"a": "b", "c": "d"}
