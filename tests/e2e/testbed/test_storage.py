"""The two StorageClasses: one that every node shares, and one that is a node's own."""

from testbed import pods
from testbed.api import Json
from testbed.cluster import Cluster
from testbed.storage import LOCAL_CLASS
from testbed.waiting import wait_until


def claim(cluster: Cluster, namespace: str, mode: str, storage_class: str | None = None) -> str:
    spec: Json = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    cluster.api.create(path, body)
    return f"{path}/data"


def run(cluster: Cluster, namespace: str, name: str, script: str, node: str | None = None) -> str:
    body = pods.pod(name, ["sh", "-c", script], node=node, claims={"data": "/data"})
    pods.create(cluster.api, namespace, body)
    pods.wait_for_phase(cluster.api, namespace, name, "Succeeded")
    return cluster.kubectl("logs", "-n", namespace, name)


def test_what_one_pod_writes_a_pod_on_the_other_node_reads(cluster: Cluster, cluster_namespace: str) -> None:
    path = claim(cluster, cluster_namespace, "ReadWriteMany")
    # Bound before any pod asks for it.
    wait_until("the claim is bound", lambda: cluster.api.get(path)["status"].get("phase") == "Bound")

    run(cluster, cluster_namespace, "writer", "echo precious >/data/file", node="n0")

    assert run(cluster, cluster_namespace, "reader", "cat /data/file", node="n1") == "precious\n"


def test_a_deleted_claim_takes_its_volume_and_folder_with_it(cluster: Cluster, cluster_namespace: str) -> None:
    path = claim(cluster, cluster_namespace, "ReadWriteMany")
    wait_until("the claim is bound", lambda: cluster.api.get(path)["status"].get("phase") == "Bound")
    volume = cluster.api.get(path)["spec"]["volumeName"]
    folder = cluster.folder / "volumes" / "shared" / volume
    assert folder.is_dir()

    cluster.api.delete(path)

    wait_until("the volume is gone", lambda: cluster.api.find(f"/api/v1/persistentvolumes/{volume}") is None)
    assert not folder.exists()


def test_the_local_class_refuses_read_write_many_with_an_event(cluster: Cluster, cluster_namespace: str) -> None:
    path = claim(cluster, cluster_namespace, "ReadWriteMany", LOCAL_CLASS)
    body = pods.pod("user", ["true"], claims={"data": "/data"})
    pods.create(cluster.api, cluster_namespace, body)

    def refusals() -> list[str]:
        events = cluster.api.get(f"/api/v1/namespaces/{cluster_namespace}/events")["items"]
        return [event["message"] for event in events if event["reason"] == "ProvisioningFailed"]

    messages = wait_until("the provisioner's event", refusals)

    assert "not ReadWriteMany" in messages[0]
    assert cluster.api.get(path)["status"]["phase"] == "Pending"
    assert pods.node_of(cluster.api, cluster_namespace, "user") is None


def test_the_local_class_binds_to_the_node_of_the_first_pod(cluster: Cluster, cluster_namespace: str) -> None:
    path = claim(cluster, cluster_namespace, "ReadWriteOnce", LOCAL_CLASS)
    assert cluster.api.get(path)["status"]["phase"] == "Pending"

    run(cluster, cluster_namespace, "first", "echo mine >/data/file", node="n1")

    volume = cluster.api.get(f"/api/v1/persistentvolumes/{cluster.api.get(path)['spec']['volumeName']}")
    terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert terms[0]["matchExpressions"][0]["values"] == ["n1"]
    # A second pod that may run anywhere follows its data.
    assert run(cluster, cluster_namespace, "second", "cat /data/file") == "mine\n"
    assert pods.node_of(cluster.api, cluster_namespace, "second") == "n1"
