"""Nodes that die, are cut off or lose their kubelet, and come back; an API server that is killed."""

import pytest

from testbed import gpus, pods
from testbed.cluster import Cluster
from testbed.waiting import wait_until


def restarts(cluster: Cluster, namespace: str, name: str) -> int:
    statuses = pods.get(cluster.api, namespace, name)["status"].get("containerStatuses", [{}])
    return int(statuses[0].get("restartCount", 0))


def test_a_dead_node_is_not_ready_and_runs_pods_again_when_it_is_back(
    breakable_cluster: Cluster, cluster_namespace: str
) -> None:
    cluster, node = breakable_cluster, breakable_cluster.nodes[1]
    tolerant = [{"operator": "Exists"}]  # or the pod would be evicted when the node is away for long
    body = pods.pod("stays", ["sleep", "600"], node="n1", restartPolicy="Always", tolerations=tolerant)
    pods.create(cluster.api, cluster_namespace, body)
    pods.wait_for_phase(cluster.api, cluster_namespace, "stays", "Running")

    node.die()
    assert node.cgroups.pids("n1") == set()
    cluster.wait_for_node("n1", ready=False)
    assert cluster.node_is_ready("n0")

    node.revive()
    cluster.wait_for_node("n1")
    wait_until("the pod runs again", lambda: restarts(cluster, cluster_namespace, "stays") > 0)
    assert gpus.gpus(cluster.api, "n1") == cluster.state.gpus_per_node
    pods.create(cluster.api, cluster_namespace, pods.pod("new", ["true"], node="n1"))
    pods.wait_for_phase(cluster.api, cluster_namespace, "new", "Succeeded")


def test_pods_of_a_node_that_is_cut_off_run_on_and_are_there_after_it_is_healed(
    breakable_cluster: Cluster, cluster_namespace: str
) -> None:
    cluster, node = breakable_cluster, breakable_cluster.nodes[0]
    tolerant = [{"operator": "Exists"}]
    body = pods.pod("stays", ["sleep", "600"], node="n0", tolerations=tolerant)
    pods.create(cluster.api, cluster_namespace, body)
    pods.wait_for_phase(cluster.api, cluster_namespace, "stays", "Running")

    node.cut()
    cluster.wait_for_node("n0", ready=False)
    assert node.cgroups.pids("n0"), "a cut node goes on with what it does"

    node.heal()
    cluster.wait_for_node("n0")
    assert pods.get(cluster.api, cluster_namespace, "stays")["status"]["phase"] == "Running"
    assert restarts(cluster, cluster_namespace, "stays") == 0
    assert cluster.kubectl("exec", "-n", cluster_namespace, "stays", "--", "echo", "here") == "here\n"


def test_a_killed_kubelet_leaves_its_pods_running(breakable_cluster: Cluster, cluster_namespace: str) -> None:
    cluster, node = breakable_cluster, breakable_cluster.nodes[1]
    pods.create(cluster.api, cluster_namespace, pods.pod("stays", ["sleep", "600"], node="n1"))
    pods.wait_for_phase(cluster.api, cluster_namespace, "stays", "Running")

    node.kill_kubelet()
    assert node.cgroups.pids("n1")
    node.revive()

    cluster.wait_for_node("n1")
    assert restarts(cluster, cluster_namespace, "stays") == 0


@pytest.mark.parametrize("victim", ["api_server", "etcd"])
def test_pods_survive_a_killed_control_plane(breakable_cluster: Cluster, cluster_namespace: str, victim: str) -> None:
    cluster = breakable_cluster
    pods.create(cluster.api, cluster_namespace, pods.pod("stays", ["sleep", "600"]))
    before = pods.wait_for_phase(cluster.api, cluster_namespace, "stays", "Running")

    component = getattr(cluster.control_plane, victim)
    component.kill9()
    assert not component.alive()
    component.restart()
    cluster.control_plane.api_server.wait_ready()

    after = pods.get(cluster.api, cluster_namespace, "stays")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["phase"] == "Running"
    assert restarts(cluster, cluster_namespace, "stays") == 0
    pods.create(cluster.api, cluster_namespace, pods.pod("new", ["true"]))
    pods.wait_for_phase(cluster.api, cluster_namespace, "new", "Succeeded")
