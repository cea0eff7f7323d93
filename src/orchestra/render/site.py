"""What differs between the targets in how a node knows itself and its peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orchestra.plan.where import Where
from orchestra.render.words import NODE_RANK, Variable, Word

STATE = "/run/orchestra"
"""A folder of each pod's own: it outlives a restart of the container, not the pod."""
PROGRAMS = "/opt/orchestra"
"""Where the script, or the agent, is mounted."""
ETCD_PORT = 2379
POD_NAME = Variable("POD_NAME")


@dataclass(frozen=True)
class Site:
    """One target's names."""

    container: str
    """The trainer's container; some controllers prescribe its name."""
    app: str
    """Label app.kubernetes.io/name."""
    host_of: Callable[[int], str]
    """Address of a node, by index."""
    own_host: Word
    """The same, said inside the pod."""
    node_rank: dict[str, Any] | None
    """`valueFrom` of NODE_RANK; None where the controller gives another variable."""
    rank_fallback: str
    """What a script takes where NODE_RANK is empty: a shell expression."""
    rank_variable: str = "NODE_RANK"
    """The variable that the controller gives."""
    idles: bool = False
    """A finished pod must not end: its controller would start it again."""
    readiness: bool = True
    """Whether a readiness probe does no harm to name resolution."""
    known: tuple[Variable, ...] = field(default=(NODE_RANK,))
    """Variables that Kubernetes itself can put into other variables."""

    def where(self, job: str, nodes: int, port: int, backend: str) -> Where:
        """The addresses for the planner: pod 0 hosts the store, unless it is an etcd."""
        hosts = [self.host_of(index) for index in range(nodes)]
        store = f"{job}-rdzv:{ETCD_PORT}" if backend == "etcd-v2" else f"{hosts[0]}:{port}"
        return Where(run_id=f"{job}-1", store=store, hosts=hosts, port=port, store_on_first_node=True, folder=STATE)


def field_ref(path: str) -> dict[str, Any]:
    """A variable's value from the pod itself."""
    return {"fieldRef": {"fieldPath": path}}
