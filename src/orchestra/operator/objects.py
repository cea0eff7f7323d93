"""What a job needs besides pods: a headless Service, claims, the agent, a network policy, a gang."""

from __future__ import annotations

import base64
from typing import Any

from orchestra.agent.pack import agent_bytes
from orchestra.operator import names
from orchestra.operator.claims import RETAINED_LABEL
from orchestra.operator.kinds import JOB_LABEL
from orchestra.plan import Plan
from orchestra.plan.model import Volume

Json = dict[str, Any]


def agent_config_map() -> Json:
    """The agent, once a namespace, immutable, owned by nobody: 5,000 jobs share it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.agent_config_map(), "labels": {"app.kubernetes.io/managed-by": "orchestra"}},
        "immutable": True,
        "binaryData": {"agent.pyz": base64.b64encode(agent_bytes()).decode()},
    }


def service(plan: Plan, owner: Json) -> Json:
    """Headless, and answering before pods are ready: they need each other's names to become ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(plan, plan.job, owner),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB_LABEL: plan.job}},
    }


def claim(plan: Plan, volume: Volume, owner: Json) -> Json:
    """A claim made for the job. A retained one is not owned: it outlives the job."""
    metadata = _metadata(plan, volume.claim, owner)
    if volume.retain:
        del metadata["ownerReferences"]
        metadata["labels"][RETAINED_LABEL] = "true"
    spec: Json = {"accessModes": volume.access_modes, "resources": {"requests": {"storage": str(volume.size)}}}
    if volume.storage_class:
        spec["storageClassName"] = volume.storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def network_policy(plan: Plan, owner: Json) -> Json:
    """Only the job's own pods reach its pods (an open rendezvous store is code execution); anyone may ask the agent."""
    mine = {"podSelector": {"matchLabels": {JOB_LABEL: plan.job}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(plan, plan.job, owner),
        "spec": {
            "podSelector": {"matchLabels": {JOB_LABEL: plan.job}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [mine]}, {"ports": [{"port": names.AGENT_PORT, "protocol": "TCP"}]}],
        },
    }


def _metadata(plan: Plan, name: str, owner: Json) -> Json:
    return {"name": name, "labels": names.labels(plan, "shared"), "ownerReferences": [owner]}
