"""Minimal definitions of our own for the two kinds of KAI that we write: enough for a real API server to check
types, bounds and scope. KAI itself is not here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from testbed.api import Api, Json
from testbed.waiting import wait_until

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_TEXT, _NUMBER = {"type": "string"}, {"type": "number", "minimum": -1}
_SHARE = {"type": "object", "properties": {"quota": _NUMBER, "limit": _NUMBER, "overQuotaWeight": _NUMBER}}
_QUEUE = {
    "parentQueue": _TEXT,
    "displayName": _TEXT,
    "priority": {"type": "integer"},
    "resources": {"type": "object", "properties": {"gpu": _SHARE, "cpu": _SHARE, "memory": _SHARE}},
}
_POD_GROUP = {
    "queue": _TEXT,
    "minMember": {"type": "integer", "minimum": 1},
    "priorityClassName": _TEXT,
    "preemptibility": {"type": "string", "enum": ["preemptible", "non-preemptible"]},
}


@contextlib.contextmanager
def kai_installed(api: Api) -> Iterator[None]:
    """The two kinds are served, until the end."""
    kinds = [
        ("Queue", "queues", "Cluster", "v2", _QUEUE),
        ("PodGroup", "podgroups", "Namespaced", "v2alpha2", _POD_GROUP),
    ]
    for kind, plural, scope, version, spec in kinds:
        api.apply(f"{_CRDS}/{plural}.scheduling.run.ai", _crd(kind, plural, scope, version, spec))
    for _, plural, _, version, _ in kinds:
        wait_until(f"{plural} are served", lambda p=plural, v=version: _served(api, p, v))  # type: ignore[misc]
    try:
        yield
    finally:
        for _, plural, *_ in kinds:
            api.delete(f"{_CRDS}/{plural}.scheduling.run.ai")


def _served(api: Api, plural: str, version: str) -> bool:
    return api.raw("GET", f"/apis/scheduling.run.ai/{version}/{plural}")[0] == 200


def _crd(kind: str, plural: str, scope: str, version: str, spec: Json) -> Json:
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": spec},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.scheduling.run.ai"},
        "spec": {
            "group": "scheduling.run.ai",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": scope,
            "versions": [served],
        },
    }
