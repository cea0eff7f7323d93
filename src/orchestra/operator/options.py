"""The operator's command line. Imports nothing heavy: `orchestra operator --help` needs no cluster packages."""

from __future__ import annotations

import argparse

from orchestra.plan.queues import SHARED_NAMESPACE
from orchestra.plan.where import ETCD_IMAGE

PROGRESS_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of `python -m orchestra.operator` and of `orchestra operator`."""
    parser.add_argument("--kubeconfig", help="outside a cluster: the kubeconfig to use")
    parser.add_argument("--namespaces", default="", help="only these, separated by commas (default: all)")
    parser.add_argument("--shared-queues-namespace", default=SHARED_NAMESPACE)
    parser.add_argument(
        "--kai-queues-from",
        choices=("all", "shared"),
        default="all",
        help="make KAI Queues from TorchrunQueues of all namespaces, or of the shared one only (tenants)",
    )
    parser.add_argument("--lease-namespace", default="", help="hold a lease there, so that one of several leads")
    parser.add_argument("--health", default="", metavar="HOST:PORT", help="serve /healthz, /readyz and /metrics there")
    parser.add_argument("--etcd-endpoint", default="", metavar="HOST:PORT", help="for rdzvBackend etcd-v2 without one")
    parser.add_argument("--etcd-image", default=ETCD_IMAGE, help="else each such job gets an etcd of its own from this")
    parser.add_argument("--image", default="", help="Orchestra's own image, for what moves bytes in a worker's pod")
    parser.add_argument("--workspace-url", default="", metavar="URL", help="where pods reach the workspace store")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument(
        "--progress-seconds", type=float, default=PROGRESS_SECONDS, help="ask running jobs at least so often"
    )
    parser.add_argument("-v", "--verbose", action="store_true")
