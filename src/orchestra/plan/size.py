"""How many nodes, GPUs and processes: the whole arithmetic of a job's size."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from orchestra.api.job import TorchrunJobSpec
from orchestra.api.problem import Problem


@dataclass(frozen=True)
class Size:
    """Nodes, and what each of them uses. The same on every node, always."""

    nodes: int
    gpus_per_node: int
    procs_per_node: int
    share: Fraction
    """The part of a node that is used; cpu, memory and shm are scaled by it."""


def distribute(gpus: int, per_node: int) -> tuple[int, int] | None:
    """`gpus` over nodes of `per_node`: one node if it fits, else the even split over the fewest nodes.

    At most twice as many nodes as the minimum are tried: beyond that the job would be spread thinner than anyone
    means. None when there is no even split.
    """
    fewest = -(-gpus // per_node)
    for nodes in range(fewest, 2 * fewest + 1):
        if gpus % nodes == 0:
            return nodes, gpus // nodes
    return None


def nearest_sizes(gpus: int, per_node: int) -> tuple[int, int]:
    """The largest size below and the smallest above `gpus` that can be split evenly."""
    below = next(n for n in range(gpus - 1, 0, -1) if distribute(n, per_node))
    above = gpus + 1
    while not distribute(above, per_node):
        above += 1
    return below, above


def size_of(job: TorchrunJobSpec, queue_name: str, node_gpus: int, command_procs: int | None) -> Size | list[Problem]:
    """The size of a job on a queue, or why it has none. `command_procs` is what the command itself asks for."""
    if node_gpus == 0:
        return _cpu_size(job, queue_name, command_procs)
    if job.num_gpus is None and job.num_nodes is None:
        reason = f"is missing: queue {queue_name} has {node_gpus} GPUs a node"
        return [Problem("spec.numGPUs", reason, "give numGPUs or numNodes")]
    if job.num_gpus is not None:
        split = distribute(job.num_gpus, node_gpus)
        if split is None:
            below, above = nearest_sizes(job.num_gpus, node_gpus)
            reason = f"{job.num_gpus} GPUs cannot be split evenly over nodes of {node_gpus}"
            return [Problem("spec.numGPUs", reason, f"the nearest sizes that work are {below} and {above}")]
        nodes, gpus = split
    else:
        nodes, gpus = job.num_nodes or 1, job.gpus_per_node or node_gpus
        if gpus > node_gpus:
            reason = f"{gpus} is more than a node of queue {queue_name} has"
            return [Problem("spec.gpusPerNode", reason, f"at most {node_gpus}")]
    procs = _procs(job, command_procs, default=gpus)
    if isinstance(procs, Problem):
        return [procs]
    if procs > gpus:
        where = "spec.procsPerNode" if job.procs_per_node else "spec.command"
        return [Problem(where, f"{procs} processes a node on {gpus} GPUs", f"at most {gpus}, one a GPU")]
    return Size(nodes, gpus, procs, Fraction(gpus, node_gpus))


def _cpu_size(job: TorchrunJobSpec, queue_name: str, command_procs: int | None) -> Size | list[Problem]:
    problems = [
        Problem(f"spec.{name}", f"queue {queue_name} has no GPUs", "use numNodes and procsPerNode")
        for name, value in (("numGPUs", job.num_gpus), ("gpusPerNode", job.gpus_per_node))
        if value is not None
    ]
    procs = _procs(job, command_procs, default=1)
    if isinstance(procs, Problem):
        return [*problems, procs]
    return problems or Size(job.num_nodes or 1, 0, procs, Fraction(1))


def _procs(job: TorchrunJobSpec, command_procs: int | None, default: int) -> int | Problem:
    if job.procs_per_node and command_procs and job.procs_per_node != command_procs:
        reason = f"procsPerNode is {job.procs_per_node} but the command asks for {command_procs}"
        return Problem("spec.procsPerNode", reason, "keep one of them")
    return job.procs_per_node or command_procs or default
