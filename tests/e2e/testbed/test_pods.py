"""Pods on two real nodes: they run, talk to each other by name, and to nobody outside."""

import subprocess
import textwrap

import pytest

from testbed import network, pods
from testbed.cluster import Cluster
from testbed.host_mounts import program, torch_mounts
from testbed.waiting import wait_until

# An ICMP echo request and the wait for its reply, since a machine need not have the ping program.
PING = textwrap.dedent(
    """
    import socket, struct, sys
    address = socket.gethostbyname(sys.argv[1])
    icmp = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    icmp.settimeout(20)
    header = struct.pack("!BBHHH", 8, 0, 0, 7, 1)
    checksum = ~sum(struct.unpack("!4H", header)) & 0xFFFF
    icmp.sendto(struct.pack("!BBHHH", 8, 0, checksum, 7, 1), (address, 0))
    while True:
        answer, (sender, _) = icmp.recvfrom(1500)
        if sender == address and answer[20] == 0:
            print("pong from", sender)
            break
    """
)

SERVE = "import socket; s = socket.create_server(('', 80)); c, _ = s.accept(); c.sendall(b'served'); c.close()"
CALL = "import socket, sys; print(socket.create_connection((sys.argv[1], 80), 20).recv(100).decode())"

TRY_TO_LEAVE = textwrap.dedent(
    """
    import errno, socket, sys
    for address in sys.argv[1:]:
        try:
            socket.create_connection((address, 80), 10)
            print(address, "CONNECTED")
        except OSError as error:
            print(address, errno.errorcode.get(error.errno, repr(error)))
    """
)


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_a_pod_says_hello_on_each_node(cluster: Cluster, cluster_namespace: str, node: str) -> None:
    pods.create(cluster.api, cluster_namespace, pods.pod("hello", ["sh", "-c", f"echo hello from {node}"], node=node))

    ended = pods.wait_for_phase(cluster.api, cluster_namespace, "hello", "Succeeded")

    assert ended["spec"]["nodeName"] == node
    assert cluster.kubectl("logs", "-n", cluster_namespace, "hello") == f"hello from {node}\n"


def test_kubectl_exec_runs_a_command_in_a_running_pod(cluster: Cluster, cluster_namespace: str) -> None:
    pods.create(cluster.api, cluster_namespace, pods.pod("waits", ["sleep", "600"], node="n1"))
    pods.wait_for_phase(cluster.api, cluster_namespace, "waits", "Running")

    answer = cluster.kubectl("exec", "-n", cluster_namespace, "waits", "--", "sh", "-c", "echo $((6 * 7))")

    assert answer == "42\n"


def test_pods_reach_each_other_across_nodes_by_their_service_name(cluster: Cluster, cluster_namespace: str) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "team"},
        "spec": {"clusterIP": "None", "selector": {"app": "team"}},
    }
    cluster.api.create(f"/api/v1/namespaces/{cluster_namespace}/services", service)
    python, lent = program("python"), torch_mounts()
    server = pods.pod(
        "server",
        [python, "-c", SERVE],
        mounts=lent,
        node="n0",
        labels={"app": "team"},
        hostname="server",
        subdomain="team",
    )
    pods.create(cluster.api, cluster_namespace, server)
    pods.create(cluster.api, cluster_namespace, pods.pod("client", ["sleep", "600"], mounts=lent, node="n1"))
    for name in ("server", "client"):
        pods.wait_for_phase(cluster.api, cluster_namespace, name, "Running")
    host = f"server.team.{cluster_namespace}.svc.{network.CLUSTER_DOMAIN}"

    def ask(script: str) -> str:
        # The name appears a moment after the pod is Ready, the server's socket a moment after it is Running.
        command = ["exec", "-n", cluster_namespace, "client", "--", python, "-c", script, host]
        return wait_until(f"an answer of {host}", lambda: cluster.kubectl(*command, check=False), interval=0.5)

    assert ask(PING).startswith("pong from 10.126.0.")
    assert ask(CALL) == "served\n"
    pods.wait_for_phase(cluster.api, cluster_namespace, "server", "Succeeded")


def test_no_packet_of_a_pod_leaves_the_machine(cluster: Cluster, cluster_namespace: str) -> None:
    # An address reserved for documentation, and one of our own service range that nobody has. On the node, the
    # kernel answers them with "unreachable": nothing is sent.
    outside = ["198.51.100.7", "10.127.99.99"]
    command, lent = [program("python"), "-c", TRY_TO_LEAVE, *outside], torch_mounts()
    inside = pods.pod("inside", command, mounts=lent)
    on_the_node = pods.pod("on-the-node", command, mounts=lent, hostNetwork=True)
    pods.create(cluster.api, cluster_namespace, inside, on_the_node)

    for name in ("inside", "on-the-node"):
        pods.wait_for_phase(cluster.api, cluster_namespace, name, "Succeeded")
        lines = cluster.kubectl("logs", "-n", cluster_namespace, name).splitlines()
        assert [line.split()[0] for line in lines] == outside
        assert {line.split()[1] for line in lines} <= {"EHOSTUNREACH", "ENETUNREACH"}, lines


def test_the_machine_forwards_nothing_that_comes_from_the_cluster(cluster: Cluster) -> None:
    # A route lookup as the kernel would do it for a packet that a node sent to the machine; nothing is sent.
    packet = ["198.51.100.7", "from", cluster.nodes[0].address, "iif", network.BRIDGE]
    lookup = subprocess.run(["ip", "route", "get", *packet], capture_output=True, text=True, check=False)

    assert lookup.returncode != 0
    assert "No route to host" in lookup.stderr


def test_a_pod_reaches_the_api_server_with_its_service_account(cluster: Cluster, cluster_namespace: str) -> None:
    script = textwrap.dedent(
        """
        import json, os, ssl, urllib.request
        folder = "/var/run/secrets/kubernetes.io/serviceaccount"
        server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
        token, namespace = open(f"{folder}/token").read(), open(f"{folder}/namespace").read()
        tls = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        ask = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        request = urllib.request.Request(
            f"{server}/apis/authentication.k8s.io/v1/selfsubjectreviews",
            data=json.dumps(ask).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        answer = json.load(urllib.request.urlopen(request, context=tls, timeout=20))
        print(answer["status"]["userInfo"]["username"])
        """
    )
    who = pods.pod("who", [program("python"), "-c", script], mounts=torch_mounts())
    pods.create(cluster.api, cluster_namespace, who)

    pods.wait_for_phase(cluster.api, cluster_namespace, "who", "Succeeded")

    said = cluster.kubectl("logs", "-n", cluster_namespace, "who").strip()
    assert said == f"system:serviceaccount:{cluster_namespace}:default"
