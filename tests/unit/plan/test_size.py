"""How GPUs become nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_cpu_queue, a_job, a_queue
from orchestra.api import Invalid
from orchestra.plan import plan
from orchestra.plan.size import distribute, nearest_sizes


@pytest.mark.parametrize(
    ("gpus", "nodes", "per_node"),
    [(16, 2, 8), (32, 4, 8), (12, 2, 6), (4, 1, 4), (20, 4, 5), (8, 1, 8), (1, 1, 1), (24, 3, 8), (9, 3, 3)],
)
def test_gpus_on_nodes_of_eight(gpus: int, nodes: int, per_node: int) -> None:
    made = plan(a_queue(), a_job(numGPUs=gpus))
    assert (made.node_count, made.procs_per_node, made.world_size) == (nodes, per_node, gpus)
    assert len(made.nodes) == nodes


def test_a_size_that_cannot_be_split_names_its_neighbours() -> None:
    with pytest.raises(Invalid) as caught:
        plan(a_queue(), a_job(numGPUs=13))
    (problem,) = caught.value.problems
    assert problem.path == "spec.numGPUs"
    assert "12 and 14" in problem.mend


def test_a_job_without_a_size_on_a_gpu_queue_is_told_so() -> None:
    with pytest.raises(Invalid) as caught:
        plan(a_queue(), a_job())
    assert [problem.path for problem in caught.value.problems] == ["spec.numGPUs"]


@given(gpus=st.integers(1, 2000), per_node=st.integers(1, 64))
def test_a_split_is_even_complete_and_within_the_node(gpus: int, per_node: int) -> None:
    split = distribute(gpus, per_node)
    if split is None:
        below, above = nearest_sizes(gpus, per_node)
        assert below < gpus < above
        assert distribute(below, per_node)
        assert distribute(above, per_node)
        assert not any(distribute(n, per_node) for n in range(below + 1, above))
        return
    nodes, each = split
    assert nodes * each == gpus
    assert each <= per_node
    assert nodes <= 2 * -(-gpus // per_node)
    fewer = range(-(-gpus // per_node), nodes)
    assert not any(gpus % n == 0 for n in fewer), "fewer nodes would have done"


def test_nodes_use_all_their_gpus_unless_told_otherwise() -> None:
    made = plan(a_queue(), a_job(numNodes=2))
    assert (made.node_count, made.gpus_per_node, made.procs_per_node) == (2, 8, 8)
    made = plan(a_queue(), a_job(numNodes=2, gpusPerNode=4, procsPerNode=1))
    assert (made.gpus_per_node, made.procs_per_node, made.world_size) == (4, 1, 2)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"numNodes": 1, "gpusPerNode": 9}, "spec.gpusPerNode"),
        ({"numNodes": 1, "gpusPerNode": 2, "procsPerNode": 4}, "spec.procsPerNode"),
        ({"numNodes": 1, "command": "torchrun --nproc_per_node=9 train.py"}, "spec.command"),
        ({"numNodes": 1, "procsPerNode": 2, "command": "torchrun --nproc_per_node=4 train.py"}, "spec.procsPerNode"),
        ({"numNodes": 2, "command": "torchrun --standalone train.py"}, "spec.command"),
        ({"numNodes": 2, "command": "torchrun --nnodes=3 train.py"}, "spec.command"),
        ({"numNodes": 2, "command": "torchrun --node_rank=0 train.py"}, "spec.command"),
        ({"numGPUs": 8, "elastic": {"minNodes": 2, "maxNodes": 3}}, "spec.elastic"),
        ({"numNodes": 2, "elastic": {"minNodes": 1}, "command": "deepspeed train.py"}, "spec.elastic"),
        ({"numNodes": 2, "elastic": {"minNodes": 1}, "command": "bash run.sh"}, "spec.elastic"),
    ],
)
def test_a_size_that_contradicts_itself_is_refused_at_its_field(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(Invalid) as caught:
        plan(a_queue(), a_job(**spec))
    assert path in [problem.path for problem in caught.value.problems]


def test_a_cpu_queue_counts_nodes_and_processes() -> None:
    made = plan(a_cpu_queue(), a_job())
    assert (made.node_count, made.procs_per_node, made.gpus_per_node) == (1, 1, 0)
    made = plan(a_cpu_queue(), a_job(numNodes=3, procsPerNode=2))
    assert made.world_size == 6
    assert made.rendezvous.collective == "gloo"


def test_gpus_on_a_cpu_queue_are_refused() -> None:
    with pytest.raises(Invalid) as caught:
        plan(a_cpu_queue(), a_job(numGPUs=1))
    assert caught.value.problems[0].path == "spec.numGPUs"


def test_an_elastic_range_without_an_upper_end_ends_at_the_planned_size() -> None:
    made = plan(a_queue(), a_job(numGPUs=32, elastic={"minNodes": 2}))
    assert (made.min_nodes, made.node_count, made.max_nodes) == (2, 4, 4)
    assert "--nnodes=2:4" in made.nodes[0].argv
    assert made.gang.min_member == 2


@given(gpus=st.integers(1, 8))
def test_a_part_of_a_node_gets_that_part_of_everything(gpus: int) -> None:
    made = plan(a_queue(storage={"shmSizePerGPU": "8Gi"}), a_job(numGPUs=gpus))
    assert made.resources.cpu is not None
    assert made.resources.memory is not None
    assert made.resources.shm is not None
    assert made.resources.cpu.value == 12 * gpus
    assert made.resources.memory.value == 64 * 2**30 * gpus
    assert made.resources.shm.value == 8 * 2**30 * gpus
