"""From a pod's volumes to the folders of a job."""

from __future__ import annotations

from typing import Any

from orchestra.api.quantity import Quantity
from orchestra.render.convert.reading import Findings, Objects, Raw, take
from orchestra.render.site import PROGRAMS, STATE

_PURPOSES = {"/app": "workspace", "/data": "datasets", "/out": "checkpoints", "/models": "models"}
_MEMORY = "/dev/shm"  # noqa: S108


def read_volumes(
    pod: Raw, container: Raw, objects: Objects, findings: Findings, job: str, shares: int, nodes: int
) -> None:
    """`shares` are the GPUs or processes of a node, `nodes` the most that the job may have."""
    volumes: list[Raw] = take(pod, "spec", "volumes", default=[])
    mounts: list[Raw] = take(container, "volumeMounts", default=[])
    by_name = {one.get("name"): one for one in volumes}
    ours = _ours(by_name, findings)
    for mount in mounts:
        volume, path = by_name.get(mount.get("name")), mount.get("mountPath")
        if volume is None or mount.get("name") in ours:
            continue
        memory = volume.get("emptyDir", {}).get("medium") == "Memory" if "emptyDir" in volume else False
        if path == _MEMORY and memory:
            size = volume["emptyDir"].get("sizeLimit")
            findings.into(findings.queue, "storage.shmSizePerGPU", _per(size, shares))
            ours.add(volume["name"])
        elif _read_claim(volume, mount, objects, findings, job, shares, nodes) or _fetched(
            volume, mount, findings, shares
        ):
            ours.add(volume["name"])
    rest = [one for one in volumes if one.get("name") not in ours]
    findings.into(findings.job, "volumes", rest)
    findings.into(findings.job, "volumeMounts", [one for one in mounts if one.get("name") not in ours])


def _ours(volumes: dict[Any, Raw], findings: Findings) -> set[str]:
    """The volumes that only carried what we rendered."""
    if not findings.ours:
        return set()
    return {
        name
        for name, path in (("programs", PROGRAMS), ("state", STATE), ("data", ""), ("output", ""))
        if name in volumes
    }


def _per(size: Any, shares: int) -> str | int | None:
    if size is None:
        return None
    exact = Quantity(str(size)).value / shares
    amount = Quantity(int(exact)).bytes_times(1) if exact.denominator == 1 else Quantity(str(size))
    return amount.text


def _fetched(volume: Raw, mount: Raw, findings: Findings, shares: int) -> bool:
    """A folder of each node that our script fills from a store."""
    if not findings.ours or volume.get("name") != "workspace" or "emptyDir" not in volume:
        return False
    size = (volume["emptyDir"] or {}).get("sizeLimit")
    if size is not None:
        findings.into(findings.queue, "storage.workspace.sizePerGPU", _per(size, shares))
        findings.into(findings.queue, "storage.workspace.mountPath", mount["mountPath"])
    return True


def _read_claim(
    volume: Raw, mount: Raw, objects: Objects, findings: Findings, job: str, shares: int, nodes: int
) -> bool:
    """A claim at a place, or of a name, whose purpose we know."""
    claim = volume.get("persistentVolumeClaim")
    path = str(mount.get("mountPath"))
    if claim is None or set(mount) - {"name", "mountPath", "readOnly"}:
        return False
    purpose = volume.get("name") if findings.ours else _PURPOSES.get(path.rstrip("/"))
    if purpose not in _PURPOSES.values():
        return False
    name = claim["claimName"]
    read_only = bool(mount.get("readOnly") or claim.get("readOnly"))
    block: Raw = {}
    if _PURPOSES.get(path) != purpose:
        block["mountPath"] = path
    made = objects.named("PersistentVolumeClaim", name) if name == f"{job}-{purpose}" else None
    if made is not None:
        block |= _made(made, shares, nodes)
        objects.remove(made)
    else:
        block["claimName"] = name
        if purpose == "workspace":
            block["source"] = "existing"
    if purpose == "datasets" and not read_only:
        block["readOnly"] = False
    elif purpose == "models" and read_only:
        block["readOnly"] = True
    elif read_only and purpose in ("checkpoints", "workspace"):
        findings.left_out.append(f"volume {volume.get('name')}: read-only, but {purpose} is written to")
    findings.queue.setdefault("storage", {})[purpose] = {"enabled": True, **block}
    return True


def _made(claim: Raw, shares: int, nodes: int) -> Raw:
    spec = claim.get("spec", {})
    size = spec.get("resources", {}).get("requests", {}).get("storage")
    block: Raw = {"sizePerGPU": _per(size, shares * nodes)}
    if spec.get("storageClassName"):
        block["storageClass"] = spec["storageClassName"]
    modes = spec.get("accessModes", [])
    if modes != ["ReadWriteOnce" if nodes == 1 else "ReadWriteMany"]:
        block["accessModes"] = modes
    return block
