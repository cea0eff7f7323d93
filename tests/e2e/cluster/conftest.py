"""One operator for all tests of a module, and a namespace with a user for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_engine import OnCluster, running_operator
from testbed.cluster import Cluster


@pytest.fixture(scope="module")
def operator_log(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The operator runs; this is what it says."""
    with running_operator(cluster, tmp_path_factory.mktemp("operator") / "operator.log") as log:
        yield log


@pytest.fixture
def site(cluster: Cluster, cluster_namespace: str, operator_log: Path, tmp_path: Path) -> Iterator[OnCluster]:
    """A namespace, its user, and a queue without GPUs."""
    made = OnCluster(cluster, cluster_namespace, tmp_path, operator_log)
    made.queue()
    yield made
    made.close()
