"""The queue's template with the job's changes laid over it.

Rules: maps merge; lists merge by name (by mount path for mounts; items without either are added if not there yet);
lists of plain values and everything else are replaced. Affinity is replaced kind by kind, because adding to its lists
would widen what the queue allows.
"""

from __future__ import annotations

from typing import Any

from orchestra.api.base import from_builtins, to_builtins
from orchestra.api.defaults import TEMPLATE_DEFAULTS
from orchestra.api.job import TorchrunJobSpec
from orchestra.api.queue import TorchrunQueueSpec
from orchestra.api.shape import shape_of
from orchestra.api.template import Template

_TEMPLATE_FIELDS = frozenset(shape_of(Template).fields)
_OF_SCHEDULING = (
    "scheduler",
    "gang",
    "priorityClassName",
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "spread",
)
_FLAT_LIFECYCLE = ("restartPolicy", "maxRestarts", "ttlSecondsAfterFinished", "activeDeadlineSeconds")
_WORKSPACE = ("source", "url", "ref", "secretName")


def template_of(queue: TorchrunQueueSpec) -> Template:
    """The queue's own template, with the general defaults."""
    return from_builtins(_with_defaults(_queue_template(queue)), Template)


def effective_template(queue: TorchrunQueueSpec, job: TorchrunJobSpec) -> Template:
    """What the workers of this job are made from."""
    merged = merge(_queue_template(queue), job_changes(job))
    return from_builtins(_with_defaults(merged), Template)


def job_changes(job: TorchrunJobSpec) -> dict[str, Any]:
    """The job's own part of the template, in the template's words."""
    given = to_builtins(job)
    changes = {name: given[name] for name in given if name in _TEMPLATE_FIELDS}
    overrides = dict(given.get("overrides", {}))
    scheduling = {name: overrides.pop(name) for name in _OF_SCHEDULING if name in overrides}
    changes = merge(changes, overrides)
    if scheduling:
        changes["scheduling"] = scheduling
    lifecycle = {name: given[name] for name in _FLAT_LIFECYCLE if name in given}
    if lifecycle:
        changes["lifecycle"] = merge(changes.get("lifecycle", {}), lifecycle)
    workspace = {name: given["workspace"][name] for name in _WORKSPACE if name in given.get("workspace", {})}
    if workspace and "workspace" in changes.get("storage", {}):
        changes["storage"] = merge(changes["storage"], {"workspace": workspace})
    return changes


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`, by the rules above. Neither is changed."""
    merged = dict(base)
    for name, value in over.items():
        if name == "affinity" and isinstance(merged.get(name), dict):
            merged[name] = {**merged[name], **value}
        elif isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = merge(merged[name], value)
        elif isinstance(value, list) and isinstance(merged.get(name), list):
            merged[name] = _merge_lists(merged[name], value)
        else:
            merged[name] = value
    return merged


def _merge_lists(base: list[Any], over: list[Any]) -> list[Any]:
    items = [*base, *over]
    if not all(isinstance(item, dict) for item in items):
        return over
    key = next((key for key in ("mountPath", "name") if all(key in item for item in items)), None)
    if key is None:
        return [*base, *(item for item in over if item not in base)]
    by_key = {item[key]: item for item in base}
    for item in over:
        before = by_key.get(item[key])
        # Two sources of one variable or volume exclude each other, so an item replaces its namesake; only containers,
        # which are large, are merged into each other.
        by_key[item[key]] = merge(before, item) if before and "image" in {**before, **item} else item
    return list(by_key.values())


def _queue_template(queue: TorchrunQueueSpec) -> dict[str, Any]:
    return {name: value for name, value in to_builtins(queue).items() if name in _TEMPLATE_FIELDS}


def _with_defaults(template: dict[str, Any]) -> dict[str, Any]:
    """Fills what nobody gave. A storage volume that nobody mentioned stays absent."""
    for path, value in TEMPLATE_DEFAULTS.items():
        *parents, last = path.split(".")
        block = template
        for parent in parents:
            if parents[0] == "storage" and parent not in block:
                break
            block[parent] = dict(block.get(parent, {}))
            block = block[parent]
        else:
            block.setdefault(last, value)
    return template
