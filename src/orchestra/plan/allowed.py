"""What a queue lets its jobs change.

`overridesAllowed` lists field paths as a job writes them. A path allows all below it, and `*` everything; but what
could reach beyond the pod (service account, security settings, the host's network and files) must be named itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from orchestra.api.base import to_builtins
from orchestra.api.job import TorchrunJobSpec
from orchestra.api.problem import Problem
from orchestra.api.queue import TorchrunQueueSpec

_OVERRIDING = (
    "image",
    "workingDir",
    "env",
    "envFrom",
    "storage",
    "distributed",
    "lifecycle",
    "restartPolicy",
    "maxRestarts",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "volumes",
    "volumeMounts",
)
_PRIVILEGED_OVERRIDES = ("serviceAccountName", "securityContext")
_PRIVILEGED_POD_FIELDS = (
    "serviceAccountName",
    "serviceAccount",
    "securityContext",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "hostUsers",
)

_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"  # a security setting of old, by annotation


def refused_overrides(queue_name: str, queue: TorchrunQueueSpec, job: TorchrunJobSpec) -> list[Problem]:
    """Each field of the job that its queue does not let it change."""
    allowed = queue.overrides_allowed
    problems = []
    for path, privileged in _changed_paths(to_builtins(job)):
        if privileged and not _names(allowed or [], path):
            mend = f"remove it, or ask for overridesAllowed: [{path}] in the queue"
            problems.append(Problem(f"spec.{path}", f"queue {queue_name} does not let jobs set this", mend))
        elif not privileged and allowed is not None and not _covers(allowed, path):
            listed = ", ".join(allowed) or "nothing"
            reason = f"queue {queue_name} does not let jobs set this"
            problems.append(Problem(f"spec.{path}", reason, f"it allows {listed}"))
    return problems


def _covers(allowed: list[str], path: str) -> bool:
    """Whether an entry is `*`, the field itself, or something that it lies in."""
    return any(
        entry == "*" or path == entry or path.startswith(f"{entry}.") or path == f"overrides.{entry}"
        for entry in map(_plain, allowed)
    )


def _names(allowed: list[str], path: str) -> bool:
    """Whether an entry is the field itself, with or without what it lies in (`hostPath` is allowed everywhere)."""
    plain = _plain(path)
    return not {plain, plain.removeprefix("overrides."), plain.rsplit(".", 1)[-1]}.isdisjoint(map(_plain, allowed))


def _plain(path: str) -> str:
    return re.sub(r"\[\d+\]", "", path.removeprefix("spec."))


def _changed_paths(job: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Every overriding field that the job gives, and whether it is a privileged one."""
    for name in _OVERRIDING:
        if name in job:
            yield name, False
    for index, volume in enumerate(job.get("volumes", [])):
        if "hostPath" in volume:
            yield f"volumes[{index}].hostPath", True
    if any(name.startswith(_APPARMOR) for name in job.get("annotations", {})):
        yield "annotations", True
    overrides = job.get("overrides", {})
    for name in overrides:
        if name in _PRIVILEGED_OVERRIDES:
            yield f"overrides.{name}", True
        elif name == "network" and "hostNetwork" in overrides[name]:
            yield "overrides.network.hostNetwork", True
        else:
            yield f"overrides.{name}", False
    yield from _privileged_in_pod(overrides.get("podTemplate", {}))


def _privileged_in_pod(template: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    base = "overrides.podTemplate.spec"
    metadata, spec = template.get("metadata"), template.get("spec")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if isinstance(annotations, dict) and any(str(name).startswith(_APPARMOR) for name in annotations):
        yield "overrides.podTemplate.metadata.annotations", True
    if not isinstance(spec, dict):
        return
    for name in _PRIVILEGED_POD_FIELDS:
        if name in spec:
            yield f"{base}.{name}", True
    for index, volume in enumerate(_dicts(spec.get("volumes"))):
        if "hostPath" in volume:
            yield f"{base}.volumes[{index}].hostPath", True
    for group in ("containers", "initContainers", "ephemeralContainers"):
        for index, container in enumerate(_dicts(spec.get(group))):
            if "securityContext" in container:
                yield f"{base}.{group}[{index}].securityContext", True
            if any("hostPort" in port for port in _dicts(container.get("ports"))):
                yield f"{base}.{group}[{index}].ports.hostPort", True


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
