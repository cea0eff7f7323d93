"""An S3 server that the pods of the two nodes reach, and an operator whose own image is the lent one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_engine import OnCluster, running_operator
from pod_bucket import PodBucket, pod_bucket
from testbed.cluster import Cluster
from testbed.images import HOST


@pytest.fixture(scope="module")
def bucket(cluster: Cluster) -> Iterator[PodBucket]:
    """A bucket of a real S3 server."""
    assert cluster.nodes
    with pod_bucket() as made:
        yield made


@pytest.fixture(scope="module")
def operator_log(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The operator runs; this is what it says."""
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    with running_operator(cluster, log, "--image", HOST) as made:
        yield made


@pytest.fixture
def site(cluster: Cluster, cluster_namespace: str, operator_log: Path, tmp_path: Path) -> Iterator[OnCluster]:
    """A namespace and its user."""
    made = OnCluster(cluster, cluster_namespace, tmp_path, operator_log)
    yield made
    made.close()
