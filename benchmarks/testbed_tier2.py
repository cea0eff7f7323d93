"""How long the testbed's two real nodes take to come up, to run a pod on each, and to go down.

Run it from the repository as root: `python benchmarks/testbed_tier2.py [runs]`. Targets: up within 15 s, down
within 3 s. The machine's one cluster must not be up.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from testbed import packages, pods
from testbed.cluster import CannotRunError, Cluster, NotUpError, require_this_machine
from testbed.programs import programs
from testbed.steps import on_stderr


def seconds(action: Callable[[], object]) -> float:
    """How long the action took."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def run_a_pod_on_each_node(cluster: Cluster) -> None:
    """From create to both Running."""
    for node in cluster.nodes:
        body = pods.pod(f"on-{node.name}", ["sleep", "600"], node=node.name)
        pods.create(cluster.api, "default", body)
    for node in cluster.nodes:
        pods.wait_for_phase(cluster.api, "default", f"on-{node.name}", "Running")


def main() -> int:
    """Measure a few times; print the medians, and the targets beside them."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    try:
        require_this_machine()
        packages.ensure(on_stderr())
        programs()  # not part of the measurement
        Cluster.attach()
        print("not measured: a cluster is up; `make cluster-down` first")
        return 0
    except CannotRunError as reason:
        print(f"not measured: {reason}")
        return 0
    except NotUpError:
        pass
    taken: dict[str, list[float]] = {"up": [], "a pod on each node Running": [], "down": []}
    for _ in range(runs):
        cluster = Cluster()
        taken["up"].append(seconds(cluster.start))
        try:
            taken["a pod on each node Running"].append(seconds(lambda: run_a_pod_on_each_node(cluster)))  # noqa: B023
        finally:
            taken["down"].append(seconds(cluster.stop))
    medians = ", ".join(f"{what} {statistics.median(times):.1f} s" for what, times in taken.items())
    print(f"two real nodes: {medians} (median of {runs}; targets: up 15 s, down 3 s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
