"""Volumes, gangs and the rest of what an engine needs."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_cpu_queue, a_job, a_queue
from orchestra.api import Invalid
from orchestra.plan import plan

WORKSPACE = {"workspace": {"enabled": True, "sizePerGPU": "10Gi"}}


def test_a_claim_is_sized_by_all_gpus_and_shared_when_there_are_several_nodes() -> None:
    (one,) = plan(a_queue(storage=WORKSPACE), a_job(numGPUs=4)).volumes
    assert (str(one.size), one.access_modes, one.claim, one.mount_path) == (
        "40Gi",
        ["ReadWriteOnce"],
        "job-workspace",
        "/app",
    )
    (two,) = plan(a_queue(storage=WORKSPACE), a_job(numGPUs=16)).volumes
    assert (str(two.size), str(two.size_per_node), two.access_modes) == ("160Gi", "80Gi", ["ReadWriteMany"])


def test_an_elastic_claim_is_made_for_the_largest_size() -> None:
    (volume,) = plan(a_queue(storage=WORKSPACE), a_job(numNodes=1, elastic={"minNodes": 1, "maxNodes": 3})).volumes
    assert (str(volume.size), volume.access_modes) == ("240Gi", ["ReadWriteMany"])


def test_checkpoints_are_kept_and_named_claims_are_left_alone() -> None:
    storage = {
        "checkpoints": {},
        "models": {"claimName": "weights", "readOnly": True},
        "datasets": {"claimName": "data"},
    }
    made = {volume.purpose: volume for volume in plan(a_cpu_queue(storage=storage), a_job()).volumes}
    assert made["checkpoints"].retain
    assert made["checkpoints"].mount_path == "/out"
    assert (made["models"].exists, made["models"].retain, made["models"].read_only) == (True, False, True)
    assert (made["datasets"].claim, made["datasets"].read_only, made["datasets"].mount_path) == ("data", True, "/data")


def test_a_block_that_is_switched_off_is_off() -> None:
    assert not plan(a_cpu_queue(storage={"workspace": {"enabled": False}}), a_job()).volumes
    made = plan(a_cpu_queue(storage=WORKSPACE), a_job(storage={"workspace": {"enabled": False}}))
    assert not made.volumes
    assert made.code is None


def test_a_mount_needs_its_volume_and_a_place_of_its_own() -> None:
    volumes = [{"name": "scratch", "emptyDir": {}}]
    good = a_job(volumes=volumes, volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}])
    assert plan(a_cpu_queue(), good).extra_mounts
    bad = a_job(
        volumes=volumes,
        volumeMounts=[{"name": "scrach", "mountPath": "/x"}, {"name": "scratch", "mountPath": "/app"}],
    )
    with pytest.raises(Invalid) as caught:
        plan(a_cpu_queue(storage=WORKSPACE), bad)
    assert {p.path for p in caught.value.problems} == {"spec.volumeMounts[0].name", "spec.volumeMounts[1].mountPath"}


def test_datasets_without_a_claim_are_refused() -> None:
    with pytest.raises(Invalid, match="datasets are on but no claim is named"):
        plan(a_cpu_queue(storage={"datasets": {"enabled": True}}), a_job())


def test_code_comes_from_the_job_or_the_queue() -> None:
    git = {"workspace": {"source": "git", "url": "https://example.org/code.git", "ref": "main"}}
    code = plan(a_cpu_queue(storage=git), a_job()).code
    assert code is not None
    assert (code.source, code.ref) == ("git", "main")
    code = plan(a_cpu_queue(storage=git), a_job(workspace={"source": "local", "snapshot": "abc"})).code
    assert code is not None
    assert (code.source, code.url, code.snapshot) == ("local", None, "abc")
    assert plan(a_cpu_queue(), a_job()).code is None


@pytest.mark.parametrize(
    ("queue", "scheduler"),
    [
        ({"kaiQueue": "team"}, "kai"),
        ({"scheduling": {"scheduler": "kai-scheduler"}}, "kai"),
        ({"scheduling": {"gang": "coscheduling"}}, "coscheduling"),
        ({"scheduling": {"gang": "auto"}}, "none"),
        ({}, "none"),
    ],
)
def test_the_queue_decides_about_the_gang(queue: dict[str, Any], scheduler: str) -> None:
    gang = plan(a_queue(**queue), a_job(numGPUs=16)).gang
    assert (gang.scheduler, gang.min_member) == (scheduler, 2)


def test_secrets_are_named_and_never_read() -> None:
    env = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    made = plan(a_cpu_queue(), a_job(env=env, secrets=[{"name": "hf", "key": "HF_TOKEN"}]))
    assert "TOKEN" not in made.nodes[0].env
    assert [one.name for one in made.env_references] == ["TOKEN"]
    assert made.secrets[0].name == "hf"
