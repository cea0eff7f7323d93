"""The few facts of a run that only its engine knows: names, addresses, and what is left of the budget."""

from __future__ import annotations

from orchestra.api.base import Model


class Where(Model):
    """Where one attempt of a job runs. An engine gives it; without one the names of the API are used."""

    run_id: str
    """Id of the rendezvous. Must be new for each attempt: exhausted restarts close an id for good."""
    store: str
    """`host:port` of the rendezvous store."""
    hosts: list[str]
    """Address of each node, by index."""
    port: int
    """MASTER_PORT, on the first node."""
    store_on_first_node: bool = False
    """Whether the first node's launcher hosts the store itself (no store of the job's own)."""
    restarts_left: int | None = None
    """What is left of `maxRestarts`; absent: all of it."""
    folder: str = "/run/orchestra"
    """Folder on each worker for the small files of the launch."""


AGENT_PORT = 29599
"""The agent's read-only pages, in every pod on every target: far from MASTER_PORT and its neighbours."""
ETCD_PORT = 2379
ETCD_IMAGE = "quay.io/coreos/etcd:v3.5.21"
"""The last line of etcd that speaks the protocol of `etcd-v2`."""


def as_named(job: str, nodes: int, port: int, backend: str) -> Where:
    """The names that the API promises for a job's first attempt."""
    return Where(
        run_id=f"{job}-1",
        store=f"{job}-rdzv:{ETCD_PORT if backend == 'etcd-v2' else port}",
        hosts=[f"{job}-{index}.{job}" for index in range(nodes)],
        port=port,
    )
