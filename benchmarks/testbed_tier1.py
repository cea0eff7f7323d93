"""How long the testbed's control plane takes to start and to stop.

Run it from the repository: `python benchmarks/testbed_tier1.py [runs]`. Targets: start under 10 s, stop under
1 s.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from testbed.control_plane import ControlPlane
from testbed.control_plane_options import ControlPlaneOptions
from testbed.programs import programs


def seconds(action: Callable[[], object]) -> float:
    """How long the action took."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure(title: str, options: ControlPlaneOptions, runs: int) -> None:
    """Start, break, repair and stop it a few times; print the medians."""
    taken: dict[str, list[float]] = {"start": [], "API server restart": [], "etcd restart": [], "stop": []}
    for _ in range(runs):
        plane = ControlPlane(options=options)
        try:
            taken["start"].append(seconds(plane.start))
            plane.api_server.kill9()
            taken["API server restart"].append(seconds(plane.api_server.restart))
            plane.etcd.kill9()
            taken["etcd restart"].append(seconds(plane.etcd.restart))
        finally:
            taken["stop"].append(seconds(plane.stop))
    medians = ", ".join(f"{what} {statistics.median(times):.2f} s" for what, times in taken.items())
    print(f"{title}: {medians} (median of {runs})")


def main() -> None:
    """Measure it bare and whole."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    programs("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")  # not part of the measurement
    measure("etcd + API server", ControlPlaneOptions(controller_manager=False, scheduler=False), runs)
    measure("with controller manager and scheduler", ControlPlaneOptions(), runs)


if __name__ == "__main__":
    main()
