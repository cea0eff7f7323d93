"""pytest fixtures for tier 2, the cluster of two real nodes.

A `make cluster` that is up and well is used as it is and left alone; otherwise one is started when the first test
asks for it, and taken down after the last one.
"""

import contextlib
import time
from collections.abc import Iterator

import pytest

from testbed import leftovers, packages, schedulers
from testbed.cluster import CannotRunError, Cluster, NotUpError, require_this_machine
from testbed.programs import ProgramsUnavailable, programs
from testbed.progress import Progress
from testbed.tiers import Tier, TierUnavailable, register_tier

_PATIENCE_S = 600.0  # less than a test may take, so that the message is ours


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The machine's cluster, shared by all tests: make things in a namespace of your own, and break nothing."""
    try:
        kept = Cluster.attach()
    except NotUpError:
        started = _start_when_the_machine_is_free()
        yield started
        started.stop()
    else:
        yield kept


@pytest.fixture
def cluster_namespace(cluster: Cluster) -> Iterator[str]:
    """A fresh namespace; its pods are gone when the next test starts, so they hold no GPU of it."""
    with cluster.namespace() as name:
        yield name
        if cluster.what_is_wrong():  # a broken node would never say that its pods have ended
            cluster.restore()


@pytest.fixture
def breakable_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, for tests that kill and cut: it is made whole again afterwards."""
    yield cluster
    cluster.restore()


@pytest.fixture
def no_cluster() -> Iterator[None]:
    """A machine without a cluster, for tests that start their own; they run before those that share one."""
    with contextlib.suppress(NotUpError):
        Cluster.attach()
        pytest.skip("a cluster is up, and this test starts its own; `make cluster-down` first")
    _clear()
    yield
    _clear()


def pytest_configure(config: pytest.Config) -> None:
    """Make tier 2 known, and the gang schedulers on top of it."""
    fixtures = ("cluster", "no_cluster")
    register_tier(config, Tier("tier 2 (two real nodes)", "cluster", fixtures, _prepare_cluster))
    gangs = {"coscheduling": _prepare_coscheduling, "kai": _prepare_kai}
    for marker, prepare in gangs.items():
        config.addinivalue_line("markers", f"{marker}: needs the {marker} gang scheduler on top of tier 2")
        register_tier(config, Tier(f"the {marker} scheduler", marker, (), prepare, required_in_ci=False))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start clusters of their own come first: a machine has one cluster at a time."""
    items.sort(key=lambda item: "no_cluster" not in getattr(item, "fixturenames", ()))


def _clear() -> None:
    with leftovers.the_one_cluster("a test run"):
        leftovers.clear()


def _start_when_the_machine_is_free() -> Cluster:
    """Start a cluster; another test run that has the machine's one cluster is given some minutes to end."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        cluster = Cluster()
        try:
            cluster.start()
            return cluster
        except leftovers.ClusterBusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _prepare_cluster(progress: Progress) -> None:
    try:
        require_this_machine()
        packages.ensure(progress.update)
        programs(progress=progress)
    except (CannotRunError, packages.PackagesError, ProgramsUnavailable) as error:
        raise TierUnavailable(str(error)) from error


def _prepare_coscheduling(_progress: Progress) -> None:
    if not schedulers.may_use_coscheduling():
        raise TierUnavailable(f"it is not built yet; {schedulers.BUILD_COSCHEDULING}=1 builds it (minutes, once)")
    try:
        schedulers.coscheduling_program()
    except ProgramsUnavailable as error:
        raise TierUnavailable(str(error)) from error


def _prepare_kai(_progress: Progress) -> None:
    try:
        schedulers.kai_assets()
    except schedulers.KaiError as error:
        raise TierUnavailable(str(error)) from error
