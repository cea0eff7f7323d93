"""Kubeflow's own published examples, converted: jobs that can be planned, and a word on everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.render.nothing_lost import silently_lost
from orchestra.plan import plan
from orchestra.render.convert import convert, workloads_in
from testbed.foreign_crds import TRAINER, TRAINING_OPERATOR, ForeignCrdsUnavailable, module_folder
from testbed.tiers import Tier, end_as_unavailable


@pytest.fixture
def examples(request: pytest.FixtureRequest) -> list[tuple[str, list[dict[str, Any]]]]:
    """Every published file with one job, and the runtimes that the Trainer itself brings."""
    try:
        operator, trainer = module_folder(TRAINING_OPERATOR), module_folder(TRAINER)
    except ForeignCrdsUnavailable as error:
        end_as_unavailable(
            request.node, Tier("Kubeflow's examples", "", (), lambda _: None, required_in_ci=False), str(error)
        )
        raise
    runtimes = [one for file in (trainer / "manifests" / "base" / "runtimes").glob("*.yaml") for one in documents(file)]
    files = [*(operator / "examples" / "pytorch").rglob("*.yaml"), *(trainer / "examples").rglob("*.yaml")]
    found = [(str(file), [one for one in documents(file) if isinstance(one, dict)]) for file in sorted(files)]
    return [(name, with_runtime(given, runtimes)) for name, given in found if len(workloads_in(given)) == 1]


def documents(file: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(file.read_text()) if one]


def with_runtime(given: list[dict[str, Any]], runtimes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds the runtime that the job refers to, where the file does not have it."""
    have = {one["metadata"]["name"] for one in given if one["kind"].endswith("TrainingRuntime")}
    wanted = {one["spec"]["runtimeRef"]["name"] for one in given if one["kind"] == "TrainJob"} - have
    return [*given, *(one for one in runtimes if one.get("metadata", {}).get("name") in wanted)]


def test_every_published_example_becomes_a_job_that_can_be_planned(
    examples: list[tuple[str, list[dict[str, Any]]]],
) -> None:
    assert len(examples) >= 8
    for name, manifests in examples:
        found = convert(manifests)
        planned = plan(found.queue, found.job)
        assert planned.launch.program, name
        assert found.understood, name
        assert silently_lost(manifests, found) == [], name
