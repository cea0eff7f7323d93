"""Made-up GPUs and real schedulers."""

import pytest

from testbed import gpus, pods
from testbed.cluster import Cluster
from testbed.waiting import wait_until

POD_GROUP = "scheduling.x-k8s.io/pod-group"


def test_a_gpu_pod_runs_and_one_too_many_waits(cluster: Cluster, cluster_namespace: str) -> None:
    total = sum(gpus.gpus(cluster.api, node.name) for node in cluster.nodes)
    per_node = total // len(cluster.nodes)
    assert per_node > 0
    for node in cluster.nodes:
        body = pods.pod(f"takes-all-{node.name}", ["sleep", "600"], gpus=per_node, node=node.name)
        pods.create(cluster.api, cluster_namespace, body)
        pods.wait_for_phase(cluster.api, cluster_namespace, f"takes-all-{node.name}", "Running")

    pods.create(cluster.api, cluster_namespace, pods.pod("one-too-many", ["true"], gpus=1))

    reason = pods.wait_until_unschedulable(cluster.api, cluster_namespace, "one-too-many")
    assert f"Insufficient {gpus.RESOURCE}" in reason
    path = f"/api/v1/namespaces/{cluster_namespace}/pods/takes-all-n0"
    cluster.api.delete(path, grace_seconds=1)
    pods.wait_for_phase(cluster.api, cluster_namespace, "one-too-many", "Succeeded")


@pytest.mark.coscheduling
def test_coscheduling_binds_a_whole_gang_or_none_of_it(cluster: Cluster, cluster_namespace: str) -> None:
    api, namespace = cluster.api, cluster_namespace
    per_node = gpus.gpus(api, "n0")

    def gang(name: str, size: int) -> list[str]:
        group = {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"minMember": size, "scheduleTimeoutSeconds": 5},
        }
        api.create(f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{namespace}/podgroups", group)
        names = [f"{name}-{number}" for number in range(size)]
        for each in names:
            body = pods.pod(each, ["sleep", "600"], gpus=per_node, labels={POD_GROUP: name})
            pods.create(api, namespace, body)
        return names

    with cluster.using_scheduler("coscheduling"):
        too_large = gang("too-large", 3)
        for name in too_large:
            pods.wait_until_unschedulable(api, namespace, name)
        assert [pods.node_of(api, namespace, name) for name in too_large] == [None, None, None]
        for name in too_large:
            api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", grace_seconds=0)

        fits = gang("fits", 2)
        wait_until("the gang is bound", lambda: all(pods.node_of(api, namespace, name) for name in fits))
        assert {pods.node_of(api, namespace, name) for name in fits} == {"n0", "n1"}


@pytest.mark.kai
def test_kai_binds_a_gang_that_fits(cluster: Cluster, cluster_namespace: str) -> None:
    api, namespace = cluster.api, cluster_namespace
    unlimited = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    resources = {"gpu": unlimited, "cpu": unlimited, "memory": unlimited}
    group_name = f"{namespace}-gang"
    with cluster.with_kai():
        for name, parent in (("testbed-top", None), ("testbed-team", "testbed-top")):
            spec = {"resources": resources, **({"parentQueue": parent} if parent else {})}
            queue = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
            api.apply(f"/apis/scheduling.run.ai/v2/queues/{name}", queue)
        group = {
            "apiVersion": "scheduling.run.ai/v2alpha2",
            "kind": "PodGroup",
            "metadata": {"name": group_name},
            "spec": {"queue": "testbed-team", "minMember": 2},
        }
        api.create(f"/apis/scheduling.run.ai/v2alpha2/namespaces/{namespace}/podgroups", group)
        for number in range(2):
            body = pods.pod(f"member-{number}", ["sleep", "600"], gpus=1, schedulerName="kai-scheduler")
            body["metadata"]["annotations"] = {
                "pod-group-name": group_name,
                "kai.scheduler/skip-podgrouper": "true",
            }
            pods.create(api, namespace, body)
        for number in range(2):
            pods.wait_for_phase(api, namespace, f"member-{number}", "Running")
