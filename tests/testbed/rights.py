"""RBAC for the testbed's own programs: each may do what it does, and no more."""

from testbed.api import Api

_GROUP = "rbac.authorization.k8s.io"

Rules = list[dict[str, list[str]]]


def grant_user(api: Api, user: str, rules: Rules, *, role: str = "") -> None:
    """A ClusterRole of these rules and its binding to one user, both named `role` (the user's name without one)."""
    name = role or user
    cluster_role = {"apiVersion": f"{_GROUP}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    binding = {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": user}],
    }
    api.apply(f"/apis/{_GROUP}/v1/clusterroles/{name}", cluster_role)
    api.apply(f"/apis/{_GROUP}/v1/clusterrolebindings/{name}", binding)
