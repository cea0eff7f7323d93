"""convert(render(job)) is the job again, in all that the target can express; the rest is in its warnings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings

from orchestra.api import Invalid, TorchrunJob, TorchrunQueue
from orchestra.api.base import to_builtins
from orchestra.plan import Plan, plan
from orchestra.plan.command import Command, understand
from orchestra.render import Options, Target, render
from orchestra.render.convert import convert
from unit.render.generated_jobs import FIELDS, everything, fields_given, pairs

TARGETS: tuple[Target, ...] = ("statefulset", "job", "pytorchjob", "trainjob")


def essence(queue: TorchrunQueue, job: TorchrunJob) -> dict[str, Any]:
    """All that a run is made of, by the path of the field that says it."""
    one = plan(queue, job)
    command = understand(job.spec.command, job.spec.launcher)
    assert isinstance(command, Command)
    found: dict[str, Any] = {
        "size": (one.node_count, one.procs_per_node, one.gpus_per_node),
        "elastic": (one.min_nodes, one.max_nodes),
        "program": [word for word in one.launch.program if word != "-u"],
        "launcher": one.launch.launcher,
        "options": sorted(one.nodes[0].launcher),
        "setupCommand": one.launch.setup,
        "workingDir": one.launch.working_dir,
        "environment": to_builtins(one.launch.environment),
        "env": _variables(one),
        "envFrom": _environments(one),
        "resources": to_builtins(one.resources),
        "rendezvous": to_builtins(one.rendezvous),
        "storage": to_builtins(one.volumes),
        "volumes": (one.extra_volumes, one.extra_mounts),
        "sync": to_builtins(one.sync),
        "gang": to_builtins(one.gang),
        "suspend": one.suspended,
        "labels": one.labels,
        "annotations": one.annotations,
    }
    if one.code is not None and one.code.source != "local":
        code = {**to_builtins(one.code), "secretName": None}
        meant = {"git": (), "s3": ("ref",), "existing": ("ref", "url")}[one.code.source]
        found["workspace"] = {**code, **dict.fromkeys(("ref", *meant))} if meant else {"ref": None, **code}
    lifecycle = to_builtins(one.lifecycle)
    if lifecycle["restartPolicy"] == "Never":
        lifecycle["maxRestarts"] = 0
    lifecycle.pop("restartPolicy")
    found |= {f"lifecycle.{name}": value for name, value in lifecycle.items()}
    template = to_builtins(one.template)
    for name in (
        "imagePullPolicy",
        "imagePullSecrets",
        "serviceAccountName",
        "securityContext",
        "scheduling",
        "network",
        "podTemplate",
        "image",
    ):
        found[name] = template.get(name)
    found["scheduling"] = _spelled_out(found["scheduling"], one)
    return found


def _spelled_out(scheduling: dict[str, Any], one: Plan) -> dict[str, Any]:
    found = {name: value for name, value in scheduling.items() if name not in ("gang",) and value not in ([], {}, None)}
    if one.gang.scheduler == "kai":
        found["scheduler"] = "kai-scheduler"
    if (one.max_nodes == 1 and found.get("spread") is None) or found.get("spread") is False:
        found.pop("spread", None)
    return found


def _variables(one: Plan) -> dict[str, str]:
    """Less the options of a torchrun that deepspeed never calls."""
    launched = one.launch.launcher == "deepspeed"
    return {name: value for name, value in one.nodes[0].env.items() if not (launched and name.startswith("PET_"))}


def _environments(one: Plan) -> list[str]:
    """References to Secrets and fields, however they were written."""
    found = [f"{ref.name}={to_builtins(ref.value_from)}" for ref in one.env_references]
    for secret in one.secrets:
        if secret.key is None:
            found.append(f"from {{'secretRef': {{'name': '{secret.name}'}}}}")
        else:
            reference = {"secretKeyRef": {"name": secret.name, "key": secret.key}}
            found.append(f"{secret.env or secret.key}={reference}")
    found += [f"from {to_builtins(source)}" for source in one.env_from]
    if one.sync is not None and one.sync.secret_name:
        found.append(f"from {{'secretRef': {{'name': '{one.sync.secret_name}'}}}}")
    if one.code is not None and one.code.source == "s3" and one.code.secret_name:
        found.append(f"from {{'secretRef': {{'name': '{one.code.secret_name}'}}}}")
    return sorted(set(found))


def lost(warnings: list[Any]) -> set[str]:
    return {warning.path.removeprefix("spec.") for warning in warnings}


def assert_same(queue: TorchrunQueue, job: TorchrunJob, target: Target, plain: bool) -> None:
    rendered = render(queue, job, target, Options(plain=plain))
    converted = convert(rendered.objects)
    before, after = essence(queue, job), essence(converted.queue, converted.job)
    warned = lost(rendered.warnings)
    for name in before.keys() | after.keys():
        one, other = before.get(name), after.get(name)
        if name == "sync":
            one, other = _synced(one, warned), _synced(other, warned)
        if _is_warned(name, warned) or (name == "rendezvous" and _about(warned, "distributed")):
            continue
        if name == "workingDir" and _is_warned("workspace", warned):
            continue  # the folder of code that does not come
        if name == "storage" and one is not None:
            one, other = _claims(one, warned), _claims(other or [], warned)
        assert one == other, f"{name}: {one} became {other}"
    assert (converted.guessed, converted.left_out) == ([], [])
    assert converted.queue.metadata.name == queue.metadata.name


def _synced(sync: dict[str, Any] | None, warned: set[str]) -> dict[str, Any]:
    """URLs that are expressed; the Secret is compared as a part of the environment."""
    urls = {name: url for name, url in (sync or {}).items() if name != "secretName" and f"sync.{name}" not in warned}
    return urls if urls.keys() & {"code", "data", "output"} else {}


def _about(warned: set[str], block: str) -> bool:
    return any(path.startswith(f"{block}.") for path in warned)


def _is_warned(name: str, warned: set[str]) -> bool:
    """Lost, and said so. A flat spelling stands for its lifecycle field."""
    tops = {path.partition(".")[0] for path in warned} & {"workspace"}
    return name in warned or name.removeprefix("lifecycle.") in warned or name in tops


def _claims(volumes: list[dict[str, Any]], warned: set[str]) -> list[dict[str, Any]]:
    found = []
    for volume in volumes:
        one = dict(volume)
        for field in ("storageClass", "accessModes", "retain", "size", "sizePerNode"):
            # A claim that exists has its own class and size, whatever else was said.
            if f"storage.{one['purpose']}.{field}" in warned or one["exists"]:
                one.pop(field, None)
        found.append(one)
    return sorted(found, key=lambda one: str(one["purpose"]))


def test_every_field_of_the_api_is_generated() -> None:
    """Else the property below would say less than it seems to."""
    seen: dict[str, set[str]] = {"job": set(), "queue": set()}

    @settings(max_examples=400, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(everything=everything())
    def look(everything: dict[str, Any]) -> None:
        for name in seen:
            seen[name] |= fields_given(everything[name])

    look()
    assert {name: sorted(FIELDS[name] - seen[name]) for name in FIELDS} == {"job": [], "queue": []}


@pytest.mark.parametrize("plain", [False, True], ids=["agent", "plain"])
@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=60, deadline=None)
@given(pair=pairs())
def test_what_is_rendered_is_converted_back(
    target: Target, plain: bool, pair: tuple[TorchrunQueue, TorchrunJob]
) -> None:
    try:
        plan(*pair)
    except Invalid:
        return  # not every generated job can run
    assert_same(*pair, target, plain)
