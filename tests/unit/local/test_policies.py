"""The embedded engine's decisions, as pure functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_cpu_queue, a_job, a_queue
from orchestra.api import Invalid
from orchestra.local import etcd
from orchestra.local.here import differences, for_cpu, moved, plan_here, refuse_if_too_large
from orchestra.local.home import Home
from orchestra.local.machine import Machine
from orchestra.local.slots import Claim, Grant, Need, Wait, judge, need_of
from orchestra.local.store import Record
from orchestra.plan import plan

# ---- slots


def waiting(name: str, gpus: int = 0, cores: int = 0) -> Claim:
    return Claim(name, name, Need(gpus, cores), None)


def holding(name: str, gpus: tuple[int, ...] = (), cores: int = 0) -> Claim:
    return Claim(name, name, Need(len(gpus), cores), gpus)


def test_nobody_overtakes_the_head_of_the_line() -> None:
    claims = [holding("running", (0, 1)), waiting("large", gpus=4), waiting("small", gpus=1)]
    large = judge("large", claims, (0, 1, 2, 3), 8)
    small = judge("small", claims, (0, 1, 2, 3), 8)
    assert large == Wait(("running",), 1, 2, 8)
    assert isinstance(small, Wait)
    assert (small.place, small.ahead) == (2, ("running", "large"))


def test_free_gpus_are_given_by_index() -> None:
    assert judge("next", [holding("a", (0, 2)), waiting("next", gpus=2)], (0, 1, 2, 3), 8) == Grant((1, 3))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.integers(1, 8))
def test_slots_are_never_given_twice(needs: list[int], total: int) -> None:
    gpus = tuple(range(total))
    claims: list[Claim] = [waiting(f"j{i}", gpus=min(need, total)) for i, need in enumerate(needs)]
    for index, claim in enumerate(claims):
        verdict = judge(claim.uid, claims, gpus, 1)
        if isinstance(verdict, Grant):
            claims[index] = Claim(claim.uid, claim.name, claim.need, verdict.gpus)
    held = [gpu for claim in claims for gpu in claim.gpus or ()]
    assert len(held) == len(set(held))


def test_processes_beyond_the_cores_share_them() -> None:
    made = plan(a_cpu_queue(), a_job(numNodes=2, procsPerNode=4))
    assert need_of(made, cores=2) == Need(0, 2)
    assert need_of(plan(a_queue(), a_job(numGPUs=16)), cores=2) == Need(16, 0)


# ---- this machine


def test_a_gpu_job_becomes_a_cpu_job_of_the_same_shape() -> None:
    queue, job = for_cpu(a_queue(kaiQueue="k"), a_job(numGPUs=16, distributed={"backend": "nccl"}))
    made = plan(queue, job)
    assert (made.node_count, made.procs_per_node, made.gpus_per_node) == (2, 8, 0)
    assert made.rendezvous.collective == "gloo"


def test_more_gpus_than_there_are_is_refused_with_a_way_out() -> None:
    with pytest.raises(Invalid, match=r"needs 16 GPUs and this machine has no GPU; .*--cpu"):
        refuse_if_too_large(plan(a_queue(), a_job(numGPUs=16)), Machine((), 2, 1), cpu=False)
    refuse_if_too_large(plan(a_queue(), a_job(numGPUs=2)), Machine((0, 1), 2, 1), cpu=False)
    with pytest.raises(Invalid, match="would only swap"):
        refuse_if_too_large(plan(a_cpu_queue(), a_job(numNodes=100)), Machine((), 2, 1), cpu=True)


@pytest.mark.parametrize(
    ("word", "there"),
    [
        ("/out", "/here"),
        ("/out/run", "/here/run"),
        ("--dir=/out/x", "--dir=/here/x"),
        ("/outside", "/outside"),
        ("out", "out"),
    ],
)
def test_a_pods_paths_are_found_on_this_machine(word: str, there: str) -> None:
    assert moved(word, {"/out": "/here", "/data": str(Path("/d"))}) == there


def test_what_is_otherwise_here_is_said(tmp_path: Path) -> None:
    storage = {"datasets": {"claimName": "corpus"}}
    queue = a_queue(storage=storage)
    job = a_job(numGPUs=2, distributed={"rdzvBackend": "etcd-v2"}, secrets=[{"name": "hf", "key": "HF_TOKEN"}])
    record = Record(job=job, queue=queue, folder="/f", cpu=True)
    made = plan_here(record, Machine((), 2, 1), None, (1, 2))
    assert made.rendezvous.backend == "c10d"
    notes = "\n".join(differences(record, made, Home(tmp_path), {"PATH": str(tmp_path)}))
    assert all(word in notes for word in ("etcd-v2", "--cpu", "corpus", "HF_TOKEN"))
    assert "c10d is used on this machine (there is no etcd on the PATH)" in notes
    assert "HF_TOKEN" not in "\n".join(differences(record, made, Home(tmp_path), {"HF_TOKEN": "x"}))


@pytest.mark.parametrize(
    ("version", "usable"), [("3.4.23", True), ("3.5.21", True), ("3.6.5", False), ("4.0.0", False), ("odd", False)]
)
def test_an_etcd_on_the_path_is_used_if_it_speaks_the_old_protocol(tmp_path: Path, version: str, usable: bool) -> None:
    program = tmp_path / "etcd"
    program.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    program.chmod(0o755)
    found, why_not = etcd.usable(str(tmp_path))
    assert (found == str(program), found is not None) == (usable, usable)
    assert bool(why_not) != usable
    job = a_job(numNodes=2, numGPUs=None, distributed={"rdzvBackend": "etcd-v2"})
    record = Record(job=job, queue=a_cpu_queue(), folder="/f")
    made = plan_here(record, Machine((), 2, 1), None, (4001, 4002), own_etcd=usable)
    assert made.rendezvous.backend == ("etcd-v2" if usable else "c10d")
    assert made.rendezvous.store == "127.0.0.1:4001"
    note = differences(record, made, Home(tmp_path), {"PATH": str(tmp_path)})[0]
    assert (f"{program} runs for this job" in note) == usable


def test_deepspeed_nodes_have_names_of_their_own() -> None:
    record = Record(job=a_job(numNodes=2, command="deepspeed t.py"), queue=a_cpu_queue(), folder="/f")
    made = plan_here(record, Machine((), 2, 1), None, (1, 2))
    assert list(made.launch.files.values()) == ["127.0.0.1 slots=1\n127.0.0.2 slots=1\n"]
