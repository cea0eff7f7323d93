"""What may change in a job that exists.

Always: `suspend`, `lifecycle` (and its flat spellings), `elastic`, `workspace.snapshot`. While it is suspended also
its size, command, image and env. Nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from orchestra.api.base import from_builtins, to_builtins
from orchestra.api.job import TorchrunJob, TorchrunJobSpec
from orchestra.api.problem import Invalid, Problem
from orchestra.api.rules import broken_rules

ALWAYS = (
    "suspend",
    "lifecycle",
    "restartPolicy",
    "maxRestarts",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "elastic",
    "workspace",  # its own rule: only the snapshot may change
)
WHILE_SUSPENDED = ("numGPUs", "numNodes", "gpusPerNode", "procsPerNode", "command", "image", "env")

_FIXED = "cannot change in a job that exists"
_FIXED_MEND = "delete the job and create it anew"
_SUSPENDED_ONLY = "can change only while the job is suspended"
_SUSPENDED_MEND = "set suspend: true first"


@dataclass(frozen=True)
class ChangeRule:
    """A field and when it may change, as CEL for the API server."""

    field: str
    cel: str
    message: str


def change_rules(fields_seen_by_cel: list[str]) -> list[ChangeRule]:
    """A rule for each field that may not change freely, as far as CEL can see the field."""
    rules = []
    for name in fields_seen_by_cel:
        if name in ALWAYS:
            continue
        same = _same("self", "oldSelf", name)
        if name in WHILE_SUSPENDED:
            cel = f"({same}) || (has(oldSelf.suspend) && oldSelf.suspend)"
            rules.append(ChangeRule(name, cel, f"{name} {_SUSPENDED_ONLY}; {_SUSPENDED_MEND}"))
        else:
            rules.append(ChangeRule(name, same, f"{name} {_FIXED}; {_FIXED_MEND}"))
    inner = " && ".join(
        f"({_same('self.workspace', 'oldSelf.workspace', name)})" for name in ("source", "url", "ref", "secretName")
    )
    # A snapshot may appear on a job that was submitted without a workspace block.
    added = "!" + " && !".join(f"has(self.workspace.{name})" for name in ("source", "url", "ref", "secretName"))
    fixed = f"has(self.workspace) ? (has(oldSelf.workspace) ? {inner} : {added}) : !has(oldSelf.workspace)"
    rules.append(ChangeRule("workspace", fixed, f"workspace {_FIXED} but for snapshot; {_FIXED_MEND}"))
    return rules


def _same(new: str, old: str, name: str) -> str:
    """As few selections as can be: for each the API server builds the table of all the fields of the spec anew, at
    every write of a job and of its status. (Optional selection would be shorter, but has no bound for its cost.)
    """
    return f"has({new}.{name}) ? has({old}.{name}) && {new}.{name} == {old}.{name} : !has({old}.{name})"


def forbidden_changes(old: TorchrunJobSpec, new: TorchrunJobSpec) -> list[Problem]:
    """The same rules for everyone who is not the API server, and for the fields that CEL cannot see."""
    before, after = to_builtins(old), to_builtins(new)
    problems = []
    for name in sorted({*before, *after} - set(ALWAYS)):
        if before.get(name) == after.get(name):
            continue
        if name in WHILE_SUSPENDED:
            if not old.suspend:
                problems.append(Problem(f"spec.{name}", f"{name} {_SUSPENDED_ONLY}", _SUSPENDED_MEND))
        else:
            problems.append(Problem(f"spec.{name}", f"{name} {_FIXED}", _FIXED_MEND))
    if _without_snapshot(before) != _without_snapshot(after):
        problems.append(Problem("spec.workspace", f"workspace {_FIXED} but for snapshot", _FIXED_MEND))
    return problems


def _without_snapshot(spec: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.get("workspace", {}).items() if key != "snapshot"}


def changed(job: TorchrunJob, changes: dict[str, Any]) -> TorchrunJob:
    """A suspended job with fields of its spec replaced; `numNodes` and `numGPUs` replace each other.

    Raises `Invalid` for what may not change or would break a rule.
    """
    spec = to_builtins(job.spec)
    for one, other in (("numNodes", "numGPUs"), ("numGPUs", "numNodes")):
        if one in changes and other not in changes:
            spec.pop(other, None)
    for path, value in changes.items():
        *parents, last = path.split(".")
        block = spec
        for parent in parents:
            block = block.setdefault(parent, {})
        if value is None:
            block.pop(last, None)
        else:
            block[last] = value
    try:
        new = from_builtins({**to_builtins(job), "spec": spec}, TorchrunJob)
    except msgspec.ValidationError as error:
        raise Invalid([Problem("spec", str(error))]) from error
    problems = [*forbidden_changes(msgspec.structs.replace(job.spec, suspend=True), new.spec), *broken_rules(new)]
    if problems:
        raise Invalid(problems)
    return new
