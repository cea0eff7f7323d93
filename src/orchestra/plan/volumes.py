"""The folders of a job: which, where, how large, and which claims they come from."""

from __future__ import annotations

from typing import Any

from orchestra.api.job import TorchrunJobSpec, Workspace
from orchestra.api.problem import Problem
from orchestra.api.quantity import Quantity
from orchestra.api.template import (
    CheckpointStorage,
    ClaimedStorage,
    DatasetStorage,
    ModelStorage,
    Storage,
    Template,
    WorkspaceStorage,
)
from orchestra.plan.model import Code, Purpose, Volume
from orchestra.plan.size import Size


def is_on(block: ClaimedStorage | DatasetStorage | None) -> bool:
    """A block that does not say otherwise is meant."""
    return block is not None and block.enabled is not False


def plan_volumes(job: str, template: Template, size: Size, most_nodes: int) -> tuple[list[Volume], list[Problem]]:
    """Every volume of the job, sized by the GPUs (or processes, on a CPU queue) that share it."""
    storage = template.storage or Storage()
    volumes, problems = [], []
    if is_on(storage.workspace) and storage.workspace:
        existing = storage.workspace.source == "existing"
        if existing and not storage.workspace.claim_name:
            problems.append(
                Problem("spec.storage.workspace.claimName", "is missing", "name the claim that holds the code")
            )
        volumes.append(_claimed("workspace", storage.workspace, job, size, most_nodes))
    if is_on(storage.datasets) and storage.datasets:
        if not storage.datasets.claim_name:
            mend = "name the claim, or set enabled: false"
            problems.append(Problem("spec.storage.datasets.claimName", "datasets are on but no claim is named", mend))
        volumes.append(
            Volume(
                purpose="datasets",
                mount_path=storage.datasets.mount_path or "/data",
                claim=storage.datasets.claim_name or "",
                exists=True,
                read_only=storage.datasets.read_only is not False,
            )
        )
    if is_on(storage.checkpoints) and storage.checkpoints:
        volumes.append(_claimed("checkpoints", storage.checkpoints, job, size, most_nodes))
    if is_on(storage.models) and storage.models:
        volumes.append(_claimed("models", storage.models, job, size, most_nodes))
    return volumes, problems


def _claimed(purpose: Purpose, block: ClaimedStorage, job: str, size: Size, most_nodes: int) -> Volume:
    shares = size.gpus_per_node or size.procs_per_node
    per_gpu = block.size_per_gpu or Quantity("10Gi")
    default_mode = "ReadWriteOnce" if most_nodes == 1 else "ReadWriteMany"
    named = block.claim_name
    return Volume(
        purpose=purpose,
        mount_path=block.mount_path or f"/{purpose}",
        claim=named or f"{job}-{purpose}",
        exists=named is not None,
        size=None if named else per_gpu.bytes_times(shares * most_nodes),
        size_per_node=None if named else per_gpu.bytes_times(shares),
        storage_class=block.storage_class,
        access_modes=[] if named else list(block.access_modes) or [default_mode],
        read_only=isinstance(block, ModelStorage) and block.read_only is True,
        retain=isinstance(block, CheckpointStorage | ModelStorage) and block.retain is not False and not named,
    )


def plan_code(job: TorchrunJobSpec, template: Template) -> Code | None:
    """Where the code comes from: the job's workspace, else the queue's; none for code baked into the image."""
    storage = template.storage.workspace if template.storage else None
    given = job.workspace or Workspace()
    if job.workspace is None and not is_on(storage):
        return None
    block = storage or WorkspaceStorage()
    source = given.source or block.source or "local"
    from_job = given.source is not None  # another source than the queue's does not inherit the queue's address
    return Code(
        source=source,
        mount_path=block.mount_path or "/app",
        url=given.url or (None if from_job else block.url),
        ref=given.ref or (None if from_job else block.ref),
        secret_name=given.secret_name or (None if from_job else block.secret_name),
        snapshot=given.snapshot,
    )


def mount_problems(job: TorchrunJobSpec, template: Template, volumes: list[Volume]) -> list[Problem]:
    """Mounts of volumes that do not exist, and two volumes at one place."""
    problems = []
    known = {str(volume.get("name")) for volume in [*job.volumes, *_template_volumes(template)]}
    taken = {volume.mount_path: volume.purpose for volume in volumes} | {"/dev/shm": "shm"}  # noqa: S108
    if len(taken) <= len(volumes):
        problems.append(Problem("spec.storage", "two volumes share one mountPath", "give each its own"))
    for index, volume in enumerate(job.volumes):
        if not isinstance(volume.get("name"), str):
            problems.append(Problem(f"spec.volumes[{index}].name", "is missing", "name the volume"))
    for index, mount in enumerate(job.volume_mounts):
        name, path = mount.get("name"), mount.get("mountPath")
        where = f"spec.volumeMounts[{index}]"
        if not isinstance(name, str) or not isinstance(path, str):
            problems.append(Problem(where, "needs name and mountPath", "add them"))
            continue
        if name not in known:
            mend = f"one of {', '.join(sorted(known))}" if known else "add it to volumes"
            problems.append(Problem(f"{where}.name", f"there is no volume {name!r}", mend))
        if path in taken:
            mend = "mount it elsewhere"
            problems.append(Problem(f"{where}.mountPath", f"{path} already holds {taken[path]}", mend))
        taken[path] = name
    return problems


def _template_volumes(template: Template) -> list[dict[str, Any]]:
    spec = (template.pod_template or {}).get("spec")
    volumes = spec.get("volumes") if isinstance(spec, dict) else None
    return [volume for volume in volumes if isinstance(volume, dict)] if isinstance(volumes, list) else []
