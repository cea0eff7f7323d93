"""The workspace store on the testbed's nodes, and queues whose jobs bring their code from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import yaml

from cluster_engine import Json, a_queue_spec
from orchestra.operator.workspace_store import NAME, workspace_manifests
from testbed.cluster import Cluster
from testbed.images import HOST
from testbed.waiting import wait_until


@contextlib.contextmanager
def running_store(cluster: Cluster) -> Iterator[str]:
    """A namespace with the store: as shipped, but with this machine's Python lent to it (which `restricted` forbids)."""
    with cluster.control_plane.namespace("store-") as namespace:
        lent = a_queue_spec()["podTemplate"]["spec"]
        for body in workspace_manifests(image=HOST, size="100Mi"):
            text = yaml.safe_dump(body).replace("orchestra-system", namespace)
            made: dict[str, Any] = yaml.safe_load(text)
            if made["kind"] == "Deployment":
                pod = made["spec"]["template"]["spec"]
                pod["volumes"] += lent["volumes"]
                pod.pop("securityContext")
                container = pod["containers"][0]
                container["volumeMounts"] += lent["containers"][0]["volumeMounts"]
                container["env"] = a_queue_spec()["env"]
            cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(made))
        try:
            wait_until("the store is ready", lambda: _ready(cluster, namespace), timeout=180)
            yield namespace
        finally:
            cluster.kubectl("delete", "clusterrolebinding", NAME, f"{NAME}-jobs")
            cluster.kubectl("delete", "clusterrole", NAME)


def _ready(cluster: Cluster, namespace: str) -> bool:
    found = cluster.api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{NAME}")
    return bool((found.get("status") or {}).get("readyReplicas"))


def a_bringing_queue_spec() -> Json:
    """As `a_queue_spec`, and what moves code in its pods borrows this machine's Python too."""
    spec = a_queue_spec()
    mounts = spec["podTemplate"]["spec"]["containers"][0]["volumeMounts"]
    ours = ("orchestra-fetch", "orchestra-code")
    spec["podTemplate"]["spec"]["initContainers"] = [{"name": name, "volumeMounts": mounts} for name in ours]
    return spec
