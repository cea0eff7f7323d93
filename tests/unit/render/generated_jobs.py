"""Queues and jobs of all kinds, for properties that hold for every one of them. `FIELDS` says which fields they have."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
from hypothesis import strategies as st

from builders import a_cpu_queue, a_job, a_queue
from orchestra.api import TorchrunJob, TorchrunQueue
from orchestra.api.job import TorchrunJobSpec
from orchestra.api.queue import TorchrunQueueSpec

Strategy = st.SearchStrategy[Any]

words = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=("Cc", "Cs")), min_size=1, max_size=12
)
arguments = st.lists(words.filter(lambda word: word.strip() == word), max_size=3)
names = st.from_regex(r"[a-z]([a-z0-9]{0,6}[a-z0-9])?", fullmatch=True)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[TorchrunQueue, TorchrunJob]:
    """A queue and a job for it; not every one can run."""
    gpus = draw(st.sampled_from([0, 1, 8]))
    spec = draw(_some(_queue_fields()))
    spec |= {
        "image": "registry/image:1",
        "overridesAllowed": ["*", "serviceAccountName", "securityContext", "hostNetwork"],
    }
    if draw(st.booleans()):
        spec["nodeResources"] = {**({"gpus": gpus, "gpuType": "h100"} if gpus else {}), "cpus": 7, "memory": "9Gi"}
    queue = a_queue("queue", gpus, **spec) if gpus else a_cpu_queue("queue", **spec)
    job = {**draw(_size(gpus)), "command": draw(_commands()), **draw(_some(_job_fields()))}
    if "volumeMounts" in job:
        job["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    return queue, a_job("train", **job)


def everything() -> st.SearchStrategy[dict[str, Any]]:
    """All fields at once that `pairs` chooses from: no job that could run."""
    always = {
        name: st.just(None) for name in ("jobQueue", "command", "numNodes", "numGPUs", "gpusPerNode", "procsPerNode")
    }
    node = st.just(dict.fromkeys(("gpus", "cpus", "memory", "gpuType")))
    queue = {**_queue_fields(), "image": st.just(None), "overridesAllowed": st.just(None), "nodeResources": node}
    return st.fixed_dictionaries(
        {"job": st.fixed_dictionaries(_job_fields() | always), "queue": st.fixed_dictionaries(queue)}
    )


def _some(fields: dict[str, Strategy]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of them: few enough that most such jobs can run, and that a failure is easily read."""

    @st.composite
    def chosen(draw: st.DrawFn) -> dict[str, Any]:
        taken = draw(st.lists(st.sampled_from(sorted(fields)), unique=True, max_size=9))
        return {name: draw(fields[name]) for name in taken}

    return chosen()


def _size(gpus: int) -> st.SearchStrategy[dict[str, Any]]:
    nodes = st.fixed_dictionaries({"numNodes": st.integers(1, 3)}, optional={"procsPerNode": st.integers(1, gpus or 4)})
    if not gpus:
        return nodes
    few = st.fixed_dictionaries({"numNodes": st.integers(1, 3), "gpusPerNode": st.integers(1, gpus)})
    return st.one_of(nodes, few, st.fixed_dictionaries({"numGPUs": st.sampled_from([1, gpus, 2 * gpus])}))


@st.composite
def _commands(draw: st.DrawFn) -> Any:
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


def _queue_fields() -> dict[str, Strategy]:
    quotas = st.just({"quota": 2, "limit": 4, "overQuotaWeight": 2})
    return {
        **_template_fields(),
        "workingDir": st.just("/queue"),
        "env": _environment(),
        "envFrom": st.just([{"configMapRef": {"name": "of-queue"}}]),
        "scheduling": _given(_scheduling()),
        "storage": _storage(),
        "distributed": _distributed(),
        "lifecycle": _lifecycle(),
        "kaiQueue": names,
        "parentKaiQueue": names,
        "resources": _given({"gpu": quotas, "cpu": quotas, "memory": quotas}),
    }


def _template_fields() -> dict[str, Strategy]:
    """What a queue says and a job may override."""
    return {
        "imagePullPolicy": st.sampled_from(["Always", "IfNotPresent"]),
        "imagePullSecrets": st.just([{"name": "pull"}]),
        "serviceAccountName": names,
        "securityContext": _security(),
        "network": _given({"interface": st.just("eth1"), "hostNetwork": st.just(True)}),
        "podTemplate": st.just({"spec": {"containers": [{"name": "trainer", "tty": True}], "dnsPolicy": "Default"}}),
    }


def _job_fields() -> dict[str, Strategy]:
    overridden = {
        **_template_fields(),
        **_scheduling(),
        "nodeResources": _given({"gpus": st.sampled_from([1, 8]), "cpus": st.just(3), "memory": st.just("5Gi"),
                                 "gpuType": st.just("a100")}),
    }  # fmt: skip
    setup = st.one_of(
        words.filter(str.strip), st.just("a 'b'\n\n  c \"$D\" # e\n"), st.lists(words, min_size=1, max_size=3)
    )
    return {
        "image": st.just("registry/other:2"),
        "setupCommand": setup,
        "environment": st.sampled_from(
            [{"requirements": "re quirements.txt"}, {"manager": "conda", "python": "3.9"}, {"python": "3.12"}]
        ),
        "workingDir": st.just("/work"),
        "env": _environment(),
        "envFrom": st.just([{"configMapRef": {"name": "settings"}}, {"prefix": "X_", "secretRef": {"name": "s"}}]),
        "secrets": st.sampled_from(
            [
                [{"name": "hf", "key": "HUGGINGFACE_HUB_TOKEN"}],
                [{"name": "hf", "key": "k", "env": "HF_TOKEN"}],
                [{"name": "all"}],
            ]
        ),
        "launcher": st.sampled_from(["auto", "torchrun", "none"]),
        "distributed": _distributed(),
        "elastic": _given({"minNodes": st.sampled_from([1, 2]), "maxNodes": st.just(4)}),
        "suspend": st.just(True),
        "lifecycle": _lifecycle(),
        "restartPolicy": st.sampled_from(["OnFailure", "Never"]),
        "maxRestarts": st.integers(0, 9),
        "ttlSecondsAfterFinished": st.just(60),
        "activeDeadlineSeconds": st.just(3600),
        "workspace": st.sampled_from(
            [
                {"source": "git", "url": "https://example.com/a.git", "ref": "v1", "secretName": "git"},
                {"source": "s3", "url": "s3://bucket/code"},
                {"source": "s3", "url": "gs://bucket/code"},
                {"source": "local", "snapshot": "a" * 64},
            ]
        ),
        "sync": st.sampled_from(
            [
                {"output": "s3://b/out", "interval": 30},
                {"code": "s3://b/c", "data": "s3://b/d", "secretName": "s3"},
                {"data": "gs://b/d"},
            ]
        ),
        "storage": _storage(),
        "volumes": st.just([{"name": "scratch", "emptyDir": {}}]),
        "volumeMounts": st.just([{"name": "scratch", "mountPath": "/scratch"}]),
        "overrides": _given(overridden),
        "labels": st.just({"team": "vision"}),
        "annotations": st.just({"note": "a note"}),
    }


def _given(fields: dict[str, Strategy]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields).filter(bool)


def _environment() -> Strategy:
    literal = st.builds(
        lambda name, value: {"name": name, "value": value}, st.sampled_from(["A", "B", "NCCL_DEBUG"]), words
    )
    field = st.just({"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    return st.lists(st.one_of(literal, field), max_size=2, unique_by=lambda one: str(one["name"]))


def _security() -> Strategy:
    profile = st.just({"type": "RuntimeDefault"})
    return _given(
        {
            "runAsUser": st.just(5),
            "runAsGroup": st.just(6),
            "runAsNonRoot": st.just(True),
            "fsGroup": st.just(7),
            "fsGroupChangePolicy": st.just("OnRootMismatch"),
            "supplementalGroups": st.just([8]),
            "supplementalGroupsPolicy": st.just("Strict"),
            "seccompProfile": profile,
            "seLinuxOptions": st.just({"level": "s0"}),
            "appArmorProfile": profile,
            "sysctls": st.just([{"name": "net.core.somaxconn", "value": "1024"}]),
            "capabilities": st.just({"add": ["IPC_LOCK"]}),
            "privileged": st.just(True),
            "allowPrivilegeEscalation": st.just(True),
            "readOnlyRootFilesystem": st.just(True),
            "procMount": st.just("Default"),
        }
    )


def _scheduling() -> dict[str, Strategy]:
    return {
        "scheduler": st.just("my-scheduler"),
        "gang": st.sampled_from(["auto", "coscheduling", "none"]),
        "priorityClassName": names,
        "nodeSelector": st.dictionaries(names, names, min_size=1, max_size=2),
        "tolerations": st.just([{"key": "spot", "operator": "Exists"}]),
        "spread": st.booleans(),
        "affinity": st.just({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}),
        "topologySpreadConstraints": st.just(
            [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
        ),
    }


def _distributed() -> Strategy:
    return st.sampled_from(
        [
            {"port": 4444},
            {"rdzvBackend": "etcd-v2"},
            {"rdzvBackend": "static"},
            {"rdzvEndpoint": "store.example:1234"},
            {"backend": "mpi"},
        ]
    )


def _lifecycle() -> Strategy:
    return _given(
        {
            "restartPolicy": st.sampled_from(["OnFailure", "Never"]),
            "maxRestarts": st.integers(0, 9),
            "gracePeriodSeconds": st.integers(0, 600),
            "activeDeadlineSeconds": st.just(3600),
            "ttlSecondsAfterFinished": st.just(60),
            "hangTimeoutSeconds": st.just(900),
            "nodeLostSeconds": st.just(20),
            "gangTimeoutSeconds": st.just(77),
            "pendingTimeoutSeconds": st.just(88),
        }
    )


def _storage() -> Strategy:
    sizes = st.sampled_from(["1Gi", "10Gi", "512Mi"])
    claim = {"enabled": st.booleans(), "sizePerGPU": sizes, "storageClass": names, "mountPath": st.just("/elsewhere"),
             "accessModes": st.just(["ReadWriteOncePod"]), "retain": st.booleans()}  # fmt: skip
    return _given(
        {
            "shmSizePerGPU": sizes,
            "datasets": st.sampled_from(
                [
                    {"claimName": "datasets-pvc"},
                    {"claimName": "d", "mountPath": "/x", "readOnly": False, "enabled": True},
                ]
            ),
            "checkpoints": st.one_of(_given(claim), st.just({"claimName": "outputs-pvc"})),
            "models": st.one_of(
                _given(claim), st.just({"claimName": "models-pvc", "readOnly": True}), st.just({"sizePerGPU": "2Gi"})
            ),
            "workspace": st.sampled_from(
                [
                    {"enabled": True, "sizePerGPU": "3Gi", "storageClass": "fast", "accessModes": ["ReadWriteMany"]},
                    {"source": "git", "url": "https://example.com/it's.git", "ref": "main", "secretName": "git"},
                    {"source": "s3", "url": "s3://bucket/code", "mountPath": "/code"},
                    {"source": "existing", "claimName": "code"},
                ]
            ),
        }
    )


# ---- which fields there are


def fields_of(model: Any) -> set[str]:
    """The paths of all fields of a model and of the models within it."""
    found: set[str] = set()

    def walk(kind: Any, path: str) -> None:
        if isinstance(kind, msgspec.inspect.UnionType):
            for one in kind.types:
                walk(one, path)
        if isinstance(kind, msgspec.inspect.StructType):
            for field in kind.fields:
                found.add(path + field.encode_name)
                walk(field.type, f"{path}{field.encode_name}.")

    walk(msgspec.inspect.type_info(model), "")
    return found


FIELDS = {"job": fields_of(TorchrunJobSpec), "queue": fields_of(TorchrunQueueSpec)}


def fields_given(value: Any, path: str = "") -> set[str]:
    """The paths of all fields that an object gives."""
    if not isinstance(value, dict):
        return set()
    below = [fields_given(one, f"{path}{name}.") for name, one in value.items()]
    return {path + name for name in value}.union(*below)
