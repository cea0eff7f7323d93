"""The pods that fetch and send, and the store's own objects, are what a real API server takes."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_cpu_queue, a_job
from orchestra.operator.pods import PodOptions, worker_pod
from orchestra.operator.workspace_store import workspace_manifests
from orchestra.plan import plan
from testbed.control_plane import ControlPlane

pytestmark = pytest.mark.control_plane
_PLURALS = {
    "ServiceAccount": "api/v1/namespaces/{}/serviceaccounts",
    "Service": "api/v1/namespaces/{}/services",
    "PersistentVolumeClaim": "api/v1/namespaces/{}/persistentvolumeclaims",
    "Deployment": "apis/apps/v1/namespaces/{}/deployments",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


@pytest.mark.parametrize(
    "spec",
    [
        {"workspace": {"snapshot": "a" * 64}},
        {"workspace": {"source": "git", "url": "https://host/repo"}},
        {"sync": {"code": "s3://b/c", "data": "hf://o/m", "output": "s3://b/o", "secretName": "keys"}},
        {"workspace": {"snapshot": "a" * 64}, "sync": {"output": "gs://b/o"}, "numNodes": 2,
         "storage": {"workspace": {"enabled": True}, "checkpoints": {"enabled": True}}},
    ],
)  # fmt: skip
def test_workers_that_move_bytes_are_accepted(
    control_plane: ControlPlane, namespace: str, spec: dict[str, Any]
) -> None:
    made = plan(a_cpu_queue(image="trainer:1"), a_job("train", **spec))
    path = f"/api/v1/namespaces/{namespace}/pods"
    for index in range(made.node_count):
        body = worker_pod(made, index, 1, "uid", {}, PodOptions(image="orchestra:1"))
        del body["metadata"]["ownerReferences"]
        taken = control_plane.admin.create(path, body, dryRun="All", fieldValidation="Strict")
        names = {volume["name"] for volume in taken["spec"]["volumes"]}
        everyone = [*taken["spec"]["containers"], *taken["spec"]["initContainers"]]
        assert {mount["name"] for one in everyone for mount in one["volumeMounts"]} <= names


@pytest.mark.parametrize("store", ["", "s3://bucket/snapshots"])
def test_the_stores_own_objects_are_accepted(control_plane: ControlPlane, namespace: str, store: str) -> None:
    for body in workspace_manifests(store=store):
        if "namespace" in body["metadata"]:
            body = {**body, "metadata": {**body["metadata"], "namespace": namespace}}
        path = "/" + _PLURALS[body["kind"]].format(namespace)
        control_plane.admin.create(path, body, dryRun="All", fieldValidation="Strict")
