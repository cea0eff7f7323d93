"""Fixtures of tier 1, and the hooks that all tiers share.

`control_plane` is one for the whole run, so a test leaves it as it found it. What a test killed or stopped in
it is brought back before the next one. A test that wants its own (other options, an audit log) uses
`control_planes`.
"""

import contextlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

from testbed import helm, tiers
from testbed.control_plane import ControlPlane
from testbed.control_plane_options import ControlPlaneOptions
from testbed.programs import ProgramsUnavailable, programs
from testbed.progress import Progress

_shared = pytest.StashKey[ControlPlane]()


class ControlPlanes:
    """Starts control planes for one test, and stops them after it."""

    def __init__(self) -> None:
        self._started: list[ControlPlane] = []

    def __call__(self, options: ControlPlaneOptions | None = None) -> ControlPlane:
        """Start one more."""
        plane = ControlPlane(options=options)
        self._started.append(plane)
        plane.start()
        return plane

    def gather_logs(self, to: Path) -> Path:
        """Copy the logs of each into a numbered folder."""
        for number, plane in enumerate(self._started):
            plane.gather_logs(to / str(number))
        return to

    def stop(self) -> None:
        """Stop all."""
        for plane in self._started:
            plane.stop()


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The run's shared control plane, with controller manager and scheduler."""
    with ControlPlane() as plane:
        request.config.stash[_shared] = plane
        yield plane
        del request.config.stash[_shared]


@pytest.fixture
def control_planes() -> Iterator[ControlPlanes]:
    """A function that starts a control plane of the test's own."""
    planes = ControlPlanes()
    yield planes
    planes.stop()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A fresh namespace of the shared control plane."""
    with control_plane.namespace() as name:
        yield name


@pytest.fixture(scope="session")
def crds(control_plane: ControlPlane, request: pytest.FixtureRequest) -> list[str]:
    """Names of the project's own CustomResourceDefinitions, installed in the shared control plane."""
    folder = request.config.rootpath / "config" / "crd" / "bases"
    return control_plane.install_crds(folder) if folder.is_dir() else []


def pytest_configure(config: pytest.Config) -> None:
    """Make tier 1 known."""
    fixtures = ("control_plane", "control_planes")
    tiers.register_tier(config, tiers.Tier("tier 1 (control plane)", "control_plane", fixtures, _prepare))
    config.addinivalue_line("markers", "helm: needs the real helm, which is built on request")
    tiers.register_tier(config, tiers.Tier("helm", "helm", (), _prepare_helm, required_in_ci=False))


def _prepare(progress: Progress) -> None:
    try:
        programs(
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubectl",
            progress=progress,
        )
    except ProgramsUnavailable as error:
        raise tiers.TierUnavailable(str(error)) from error


def _prepare_helm(progress: Progress) -> None:
    if not helm.may_use_helm():
        raise tiers.TierUnavailable(f"it is not built yet; {helm.BUILD_HELM}=1 builds it (minutes, once)")
    try:
        helm.helm_program(progress)
    except ProgramsUnavailable as error:
        raise tiers.TierUnavailable(str(error)) from error


# ---- hooks for all tiers


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark before `-m` selects."""
    tiers.mark_users_of_tiers(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Prepare here and not in a fixture: building programs takes longer than a test may."""
    if session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
        tiers.prepare_tiers(session.config, session.items, Progress())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Not run where a tier is unavailable; else bring back what the test before has broken."""
    tiers.check_tiers_of(item)
    plane = item.config.stash.get(_shared, None)
    if plane is not None and item.get_closest_marker("control_plane"):
        plane.repair()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Gather the logs of failures."""
    report = yield
    if report.failed:
        tiers.gather_logs_of(item, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """A word of its own in the closing line: `3 passed, 12 not run`."""
    if report.when == "setup" and tiers.why_not_run(report) is not None:
        return "not run", "n", ("NOT RUN", {"yellow": True})
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what did not happen, and why."""
    reports: Sequence[pytest.TestReport] = terminalreporter.stats.get("not run", [])
    if reports:
        terminalreporter.section("tests that were not run", yellow=True, bold=True)
        for line in tiers.not_run_lines(reports):
            terminalreporter.write_line(line, yellow=True)
