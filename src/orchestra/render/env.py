"""The environment of the trainer's container."""

from __future__ import annotations

from typing import Any

from orchestra.api.base import to_builtins
from orchestra.plan.model import Plan
from orchestra.render.launch import Launching
from orchestra.render.script import TOKEN_SPELLINGS
from orchestra.render.site import Site, field_ref
from orchestra.render.words import kubernetes

_COMMENTS = {
    "MASTER_ADDR": "Pod 0 by its own name: a Service's name would lead to any pod.",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "Without it, workers that restart read the addresses of the round before.",
    "NCCL_SOCKET_IFNAME": "The interface for collectives.",
}


def container_env(plan: Plan, launch: Launching, site: Site) -> list[dict[str, Any]]:
    """Identity first (later variables refer to it), then the plan's, then references to Secrets and fields."""
    found: list[dict[str, Any]] = [{"name": "POD_NAME", "valueFrom": field_ref("metadata.name")}]
    if site.node_rank is not None:
        found.append({"name": "NODE_RANK", "valueFrom": site.node_rank})
    comment = "Always equal to the number of pods; change both together."
    found.append({"#": comment, "name": "NNODES", "value": str(plan.node_count)})
    for name, word in launch.env.items():
        if name == "NNODES":
            continue
        text = {"#": _COMMENTS[name]} if name in _COMMENTS else {}
        found.append({**text, "name": name, "value": kubernetes(word)})
    found += [to_builtins(one) for one in plan.env_references]
    for secret in plan.secrets:
        if secret.key is not None:
            reference = {"name": secret.name, "key": secret.key}
            found.append({"name": secret.env or secret.key, "valueFrom": {"secretKeyRef": reference}})
    return found + _token(found)


def _token(env: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """HF_TOKEN, where only an older spelling of it is given."""
    by_name = {one["name"]: one for one in env}
    if "HF_TOKEN" in by_name:
        return []
    for spelling in TOKEN_SPELLINGS:
        if spelling in by_name:
            source = {key: value for key, value in by_name[spelling].items() if key in ("value", "valueFrom")}
            return [{"#": f"Libraries look for this name; {spelling} is an older one.", "name": "HF_TOKEN", **source}]
    return []


def container_env_from(plan: Plan) -> list[dict[str, Any]]:
    """Whole Secrets and ConfigMaps: the user's, and the object store's credentials."""
    found = [to_builtins(one) for one in plan.env_from]
    names = [secret.name for secret in plan.secrets if secret.key is None]
    if plan.sync is not None and plan.sync.secret_name:
        names.append(plan.sync.secret_name)
    if plan.code is not None and plan.code.secret_name and plan.code.source == "s3":
        names.append(plan.code.secret_name)
    for name in dict.fromkeys(names):
        if {"secretRef": {"name": name}} not in found:
            found.append({"secretRef": {"name": name}})
    return found
