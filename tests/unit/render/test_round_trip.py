"""convert(render(job)) is the job again, in all that the target can express; the rest is in its warnings."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_cpu_queue, a_job, a_queue
from orchestra.api import Invalid, TorchrunJob, TorchrunQueue
from orchestra.api.base import to_builtins
from orchestra.plan import Plan, plan
from orchestra.plan.command import Command, understand
from orchestra.render import Options, Target, render
from orchestra.render.convert import convert

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
        found["workspace"] = {**to_builtins(one.code), "secretName": None}
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
        if name == "storage" and one is not None:
            one, other = _claims(one, warned), _claims(other or [], warned)
        assert one == other, name
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
        for field in ("storageClass", "accessModes", "retain"):
            if f"storage.{one['purpose']}.{field}" in warned:
                one.pop(field, None)
        found.append(one)
    return sorted(found, key=lambda one: str(one["purpose"]))


# ---- generated jobs

words = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=("Cc", "Cs")), min_size=1, max_size=12
)
arguments = st.lists(words.filter(lambda word: word.strip() == word), max_size=3)
names = st.from_regex(r"[a-z]([a-z0-9]{0,6}[a-z0-9])?", fullmatch=True)


@st.composite
def commands(draw: st.DrawFn) -> Any:
    after = draw(arguments)
    kind = draw(st.sampled_from(["python", "module", "torchrun", "line", "bash", "deepspeed", "interpreter"]))
    if kind == "line":
        return " ".join(["python", "train.py", *(shlex.quote(word) for word in after)])
    if kind == "bash":
        return ["bash", "-c", draw(words), *after]
    return {
        "python": ["python", "train.py", *after],
        "module": ["python", "-m", "package.train", *after],
        "torchrun": ["torchrun", "--tee", "3", "train.py", *after],
        "deepspeed": ["deepspeed", "train.py", *after],
        "interpreter": ["/opt/env/bin/python", "train.py", *after],
    }[kind]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[TorchrunQueue, TorchrunJob]:
    gpus = draw(st.sampled_from([0, 1, 8]))
    nodes = draw(st.integers(1, 3))
    spec: dict[str, Any] = {"image": "registry/image:1"}
    for name, value in (
        ("imagePullPolicy", st.sampled_from(["Always", "IfNotPresent"])),
        ("imagePullSecrets", st.just([{"name": "pull"}])),
        ("serviceAccountName", names),
        ("securityContext", st.just({"runAsUser": 5, "fsGroup": 6, "privileged": True})),
        ("network", st.sampled_from([{"interface": "eth1"}, {"hostNetwork": True}])),
        ("scheduling", _scheduling()),
        ("storage", _storage()),
        ("lifecycle", _lifecycle()),
        ("podTemplate", st.just({"spec": {"containers": [{"name": "trainer", "tty": True}], "hostPID": True}})),
    ):
        if draw(st.booleans()):
            spec[name] = draw(value)
    job: dict[str, Any] = {"numNodes": nodes, "command": draw(commands())}
    for name, value in _job_fields(gpus).items():
        if draw(st.booleans()):
            job[name] = draw(value)
    queue = a_queue("queue", gpus, **spec) if gpus else a_cpu_queue("queue", **spec)
    return queue, a_job("train", **job)


def _scheduling() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "priorityClassName": names,
            "nodeSelector": st.dictionaries(names, names, max_size=2),
            "tolerations": st.just([{"key": "spot", "operator": "Exists"}]),
            "spread": st.just(True),
            "affinity": st.just({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}),
            "topologySpreadConstraints": st.just(
                [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
            ),
            "gang": st.just("coscheduling"),
        },
    )


def _storage() -> st.SearchStrategy[dict[str, Any]]:
    sizes = st.sampled_from(["1Gi", "10Gi", "512Mi"])
    return st.fixed_dictionaries(
        {},
        optional={
            "shmSizePerGPU": sizes,
            "datasets": st.sampled_from(
                [{"claimName": "datasets-pvc"}, {"claimName": "d", "mountPath": "/x", "readOnly": False}]
            ),
            "checkpoints": st.one_of(
                st.fixed_dictionaries({"sizePerGPU": sizes, "storageClass": names}),
                st.just({"claimName": "outputs-pvc"}),
                st.just({"retain": False, "accessModes": ["ReadWriteOncePod"]}),
            ),
            "models": st.sampled_from([{"claimName": "models-pvc", "readOnly": True}, {"sizePerGPU": "2Gi"}]),
            "workspace": st.sampled_from(
                [
                    {"enabled": True},
                    {"source": "git", "url": "https://example.com/it's.git", "ref": "main"},
                    {"source": "s3", "url": "s3://bucket/code", "mountPath": "/code"},
                    {"source": "existing", "claimName": "code"},
                ]
            ),
        },
    )


def _lifecycle() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "maxRestarts": st.integers(0, 9),
            "gracePeriodSeconds": st.integers(0, 600),
            "activeDeadlineSeconds": st.just(3600),
            "ttlSecondsAfterFinished": st.just(60),
            "hangTimeoutSeconds": st.just(900),
            "nodeLostSeconds": st.just(20),
        },
    )


def _job_fields(gpus: int) -> dict[str, st.SearchStrategy[Any]]:
    return {
        "procsPerNode": st.integers(1, gpus or 4),
        "setupCommand": st.one_of(
            words.filter(str.strip), st.just("a 'b'\n\n  c \"$D\" # e\n"), st.lists(words, min_size=1, max_size=3)
        ),
        "environment": st.sampled_from(
            [{"requirements": "re quirements.txt"}, {"manager": "conda", "python": "3.9"}, {"python": "3.12"}]
        ),
        "workingDir": st.just("/work"),
        "env": st.lists(
            st.builds(
                lambda name, value: {"name": name, "value": value}, st.sampled_from(["A", "B", "NCCL_DEBUG"]), words
            ),
            max_size=2,
            unique_by=lambda one: str(one["name"]),
        ),
        "envFrom": st.just([{"configMapRef": {"name": "settings"}}, {"prefix": "X_", "secretRef": {"name": "s"}}]),
        "secrets": st.sampled_from(
            [
                [{"name": "hf", "key": "HUGGINGFACE_HUB_TOKEN"}],
                [{"name": "hf", "key": "k", "env": "HF_TOKEN"}],
                [{"name": "all"}],
            ]
        ),
        "distributed": st.sampled_from(
            [
                {"port": 4444},
                {"rdzvBackend": "etcd-v2"},
                {"rdzvBackend": "static"},
                {"rdzvEndpoint": "store.example:1234"},
                {"backend": "mpi"},
            ]
        ),
        "elastic": st.just({"minNodes": 1, "maxNodes": 4}),
        "suspend": st.just(True),
        "sync": st.sampled_from(
            [
                {"output": "s3://b/out", "interval": 30},
                {"code": "s3://b/c", "data": "s3://b/d", "secretName": "s3"},
                {"data": "gs://b/d"},
            ]
        ),
        "volumes": st.just([{"name": "scratch", "emptyDir": {}}]),
        "labels": st.just({"team": "vision"}),
        "annotations": st.just({"note": "a note"}),
    }


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
