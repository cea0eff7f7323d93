"""The control plane is a real one, for admins, users and ServiceAccounts, and several run side by side."""

import os
import secrets
import subprocess
from pathlib import Path

import pytest
import yaml

from testbed.api import Api, ApiError, Json
from testbed.control_plane import ControlPlane
from testbed.control_plane_options import ControlPlaneOptions, TokenUser
from testbed.fake_nodes import set_pod_phase
from testbed.kubeconfig import Access
from testbed.programs import kubernetes_version, programs
from testbed.pytest_plugin import ControlPlanes
from testbed.waiting import wait_until


def config_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def a_pod(name: str, **limits: str) -> Json:
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def test_kubectl_and_server_say_the_version_that_is_pinned(control_plane: ControlPlane) -> None:
    environment = {**os.environ, "KUBECONFIG": str(control_plane.admin_kubeconfig)}
    command = [str(programs("kubectl")["kubectl"]), "version", "--output=json"]
    answer = yaml.safe_load(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    if "KUBEBUILDER_ASSETS" in os.environ:
        pytest.skip("the programs are the user's own")
    assert answer["clientVersion"]["gitVersion"] == f"v{kubernetes_version()}"
    assert answer["serverVersion"]["gitVersion"] == f"v{kubernetes_version()}"
    assert answer["serverVersion"]["minor"] == kubernetes_version().split(".")[1]


def test_objects_are_created_read_applied_patched_and_deleted(control_plane: ControlPlane, namespace: str) -> None:
    api, path = control_plane.admin, f"/api/v1/namespaces/{namespace}/configmaps"
    api.create(path, config_map("a", x="1"))
    api.apply(f"{path}/a", config_map("a", y="2"))
    api.patch(f"{path}/a", {"data": {"z": "3"}})
    assert api.get(f"{path}/a")["data"] == {"x": "1", "y": "2", "z": "3"}
    api.delete(f"{path}/a")
    assert api.find(f"{path}/a") is None
    with pytest.raises(ApiError, match="404 NotFound"):
        api.get(f"{path}/a")


def test_a_service_account_has_its_own_rights_and_no_others(control_plane: ControlPlane, namespace: str) -> None:
    api, path = control_plane.admin, f"/api/v1/namespaces/{namespace}"
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    api.create(f"{path}/serviceaccounts", {"metadata": {"name": "reader"}})
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}
    api.create(f"{rbac}/roles", {"metadata": {"name": "reader"}, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": namespace}
    api.create(f"{rbac}/rolebindings", {"metadata": {"name": "reader"}, "roleRef": role, "subjects": [subject]})
    reader = Api.from_kubeconfig(control_plane.service_account_kubeconfig(namespace, "reader"))
    assert reader.access.namespace == namespace
    wait_until("the role is in force", lambda: reader.raw("GET", f"{path}/configmaps")[0] == 200)
    for forbidden in (f"{path}/secrets", "/api/v1/namespaces/default/configmaps"):
        with pytest.raises(ApiError, match="403 Forbidden"):
            reader.get(forbidden)
    with pytest.raises(ApiError, match="403 Forbidden"):
        reader.create(f"{path}/configmaps", config_map("a"))


def test_any_user_and_group_can_be_played(control_plane: ControlPlane) -> None:
    jane = Api.from_kubeconfig(control_plane.user_kubeconfig("jane", ["dev"]))
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = jane.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert answer["status"]["userInfo"]["username"] == "jane"
    assert "dev" in answer["status"]["userInfo"]["groups"]
    with pytest.raises(ApiError, match="403 Forbidden"):
        jane.get("/api/v1/nodes")


def test_the_real_scheduler_binds_a_pod_to_a_fake_node(control_plane: ControlPlane, namespace: str) -> None:
    api, pods = control_plane.admin, f"/api/v1/namespaces/{namespace}/pods"
    name = f"gpus-{secrets.token_hex(4)}"
    with control_plane.fake_node(name, {"nvidia.com/gpu": "8"}):
        api.create(pods, a_pod("fits", **{"nvidia.com/gpu": "8"}))
        api.create(pods, a_pod("waits", **{"nvidia.com/gpu": "1"}))
        wait_until("the pod is bound", lambda: api.get(f"{pods}/fits")["spec"].get("nodeName") == name)
        set_pod_phase(api, namespace, "fits", "Running")
        wait_until("the scheduler says why the other waits", lambda: is_unschedulable(api.get(f"{pods}/waits")))
        set_pod_phase(api, namespace, "fits", "Failed", exit_code=3)
        state = api.get(f"{pods}/fits")["status"]["containerStatuses"][0]["state"]
        assert state["terminated"]["exitCode"] == 3
        wait_until("its GPU is free", lambda: api.get(f"{pods}/waits")["spec"].get("nodeName") == name)


def is_unschedulable(pod: Json) -> bool:
    return any(c.get("reason") == "Unschedulable" for c in pod["status"].get("conditions", []))


def test_a_fake_node_that_is_not_ready_is_tainted_and_healed(control_plane: ControlPlane) -> None:
    def taints() -> list[str]:
        return [taint["key"] for taint in control_plane.admin.get(node.path)["spec"].get("taints", [])]

    with control_plane.fake_node(f"weak-{secrets.token_hex(4)}") as node:
        wait_until("it is untainted", lambda: not taints())
        node.set_ready(False)
        wait_until("it is tainted", lambda: "node.kubernetes.io/not-ready" in taints())
        node.set_ready(True)
        wait_until("it is untainted again", lambda: not taints())


def test_a_deleted_owner_takes_its_children_along(control_plane: ControlPlane, namespace: str) -> None:
    api, path = control_plane.admin, f"/api/v1/namespaces/{namespace}/configmaps"
    owner = api.create(path, config_map("owner"))["metadata"]
    child = config_map("child")
    child["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    ]
    api.create(path, child)
    api.delete(f"{path}/owner")
    wait_until("the child is collected", lambda: api.find(f"{path}/child") is None, timeout=120)


def test_a_namespace_is_deleted_with_pods_that_nobody_ran(control_plane: ControlPlane) -> None:
    with control_plane.fake_node(f"node-{secrets.token_hex(4)}"):
        with control_plane.namespace() as name:
            pods = f"/api/v1/namespaces/{name}/pods"
            control_plane.admin.create(pods, a_pod("a"))
            wait_until("it is bound", lambda: control_plane.admin.get(f"{pods}/a")["spec"].get("nodeName"))
        path = f"/api/v1/namespaces/{name}"
        wait_until("the namespace is gone", lambda: control_plane.admin.find(path) is None, timeout=120)


def test_crds_are_served_when_install_returns(control_plane: ControlPlane, tmp_path: Path) -> None:
    group = f"{secrets.token_hex(4)}.example.com"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    (tmp_path / "thing.yaml").write_text(yaml.safe_dump(definition))
    assert control_plane.install_crds(tmp_path) == [f"things.{group}"]
    thing = {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"b": 1}}
    assert control_plane.admin.create(f"/apis/{group}/v1/things", thing)["spec"] == {"b": 1}


def test_the_projects_own_crds_are_installed(control_plane: ControlPlane, crds: list[str]) -> None:
    for name in crds:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        assert control_plane.admin.get(path)["spec"]["group"]


def test_two_control_planes_know_nothing_of_each_other(
    control_plane: ControlPlane, control_planes: ControlPlanes
) -> None:
    options = ControlPlaneOptions(
        controller_manager=False,
        scheduler=False,
        audit=True,
        token_users=(TokenUser("robot", ("system:masters",)),),
    )
    other = control_planes(options)
    assert other.url != control_plane.url
    with control_plane.namespace() as here, other.namespace() as there:
        assert other.admin.find(f"/api/v1/namespaces/{here}") is None
        assert control_plane.admin.find(f"/api/v1/namespaces/{there}") is None
    robot = Api.from_kubeconfig(other.token_kubeconfig("robot"))
    robot.get("/api/v1/nodes")
    asked = [event for event in other.audit_events() if event["user"]["username"] == "robot"]
    assert [event["requestURI"] for event in asked] == ["/api/v1/nodes"]
    with pytest.raises(ApiError, match="401"):
        Api(access_with_token_of(robot, control_plane)).get("/api/v1/nodes")


def access_with_token_of(api: Api, plane: ControlPlane) -> Access:
    return Access(plane.url, plane.certificate_authority.pair.certificate, token=api.access.token)
