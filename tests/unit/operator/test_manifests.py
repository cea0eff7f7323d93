"""What runs the operator in a cluster."""

from __future__ import annotations

from pathlib import Path

from orchestra.operator.install import manifests
from orchestra.operator.manifests import Installation, deployment
from orchestra.operator.rights import CLUSTER_WIDE, lost_without_cluster_rights, namespaced_rules, operator_rules

ROOT = Path(__file__).resolve().parents[3]


def test_the_operator_may_read_no_secrets_and_enter_no_pods() -> None:
    allowed = {resource for rule in operator_rules() for resource in rule["resources"]}
    assert not allowed & {"secrets", "pods/exec", "pods/attach", "pods/portforward", "*"}
    assert all("*" not in rule["verbs"] and "*" not in rule["apiGroups"] for rule in operator_rules())
    assert {"torchrunjobs/finalizers", "torchrunqueues/finalizers"} <= allowed


def test_roles_alone_grant_nothing_that_no_namespace_holds_and_what_is_lost_is_told() -> None:
    kept = {(rule["apiGroups"][0], name) for rule in namespaced_rules() for name in rule["resources"]}
    asked = {(rule["apiGroups"][0], name) for rule in operator_rules() for name in rule["resources"]}
    assert asked - kept == asked & CLUSTER_WIDE.keys()
    assert len(lost_without_cluster_rights()) == len(asked - kept) + 1
    kinds = [one["kind"] for one in manifests(Installation(namespaces=("a", "b")))]
    assert "ClusterRole" not in kinds
    assert "ClusterRoleBinding" not in kinds


def test_some_namespaces_are_told_to_the_operator() -> None:
    container = deployment(Installation(namespaces=("a", "b")))["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][-1] == "--namespaces=a,b"


def test_the_image_has_the_command_that_the_deployment_calls_and_no_torch() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["orchestra"]' in text
    assert "[cluster,sync,hub]" in text
    assert "USER 65532:65532" in text
