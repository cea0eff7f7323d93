"""Volumes, mounts and claims of the pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestra.api.base import to_builtins
from orchestra.plan.model import Plan, Volume
from orchestra.render.labels import metadata
from orchestra.render.site import PROGRAMS, STATE, Site
from orchestra.render.steps import folders

_MODE_0755 = 0o755


@dataclass
class Volumes:
    """What goes into the pod, and the claims that must exist before it."""

    volumes: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, path: str, source: dict[str, Any], read_only: bool = False, comment: str = "") -> None:
        """One volume, mounted once."""
        self.volumes.append({**({"#": comment} if comment else {}), "name": name, **source})
        self.mounts.append({"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})})


def pod_volumes(plan: Plan, site: Site, programs: dict[str, Any]) -> Volumes:
    """All volumes of a pod. `programs` is the source of the script, or of the agent."""
    found = Volumes()
    found.add("programs", PROGRAMS, programs, read_only=True)
    found.add("state", STATE, {"emptyDir": {}}, comment="Outlives a restart of the container, not the pod.")
    shm: dict[str, Any] = {"medium": "Memory"}
    if plan.resources.shm is not None:
        shm["sizeLimit"] = to_builtins(plan.resources.shm)
    comment = "Without it /dev/shm has 64 MiB, too little for data loaders and NCCL."
    found.add("shm", "/dev/shm", {"emptyDir": shm}, comment=comment)  # noqa: S108
    fetched = folders(plan).code
    for volume in plan.volumes:
        if volume.purpose == "workspace" and fetched == volume.mount_path and not volume.exists:
            size = {"sizeLimit": to_builtins(volume.size_per_node)} if volume.size_per_node else {}
            found.add("workspace", volume.mount_path, {"emptyDir": size}, comment="Each node fetches its own copy.")
            continue
        claim = {"claimName": volume.claim, **({"readOnly": True} if volume.read_only else {})}
        found.add(volume.purpose, volume.mount_path, {"persistentVolumeClaim": claim}, volume.read_only)
        if not volume.exists:
            found.claims.append(_claim(plan, site, volume))
    _add_synced(found, plan)
    found.volumes += plan.extra_volumes
    found.mounts += plan.extra_mounts
    return found


def _add_synced(found: Volumes, plan: Plan) -> None:
    """Folders that are filled from an object store and have no volume yet: one in each pod."""
    where = folders(plan)
    for name, path in (("workspace", where.code), ("data", where.data), ("output", where.output)):
        if path is not None and path not in [mount["mountPath"] for mount in found.mounts]:
            found.add(name, path, {"emptyDir": {}}, comment="Filled from the object store, in each pod.")


def _claim(plan: Plan, site: Site, volume: Volume) -> dict[str, Any]:
    spec: dict[str, Any] = {"accessModes": list(volume.access_modes)}
    if volume.storage_class:
        spec["storageClassName"] = volume.storage_class
    if "ReadWriteMany" in volume.access_modes:
        spec = {"#accessModes": "Several nodes write here: the storage class must be able to do that.", **spec}
    spec["resources"] = {"requests": {"storage": to_builtins(volume.size)}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(plan, site, volume.claim),
        "spec": spec,
    }


def script_source(config_map: str) -> dict[str, Any]:
    """The script's ConfigMap as a volume."""
    return {
        "configMap": {
            "name": config_map,
            "#defaultMode": "0755 in decimal: executable at once, no chmod on a read-only mount.",
            "defaultMode": _MODE_0755,
        }
    }


def agent_source(agent: str, launch: str) -> dict[str, Any]:
    """The agent's and the job's ConfigMaps as one volume."""
    sources = [{"configMap": {"name": agent}}, {"configMap": {"name": launch}}]
    return {"projected": {"sources": sources, "defaultMode": _MODE_0755}}
