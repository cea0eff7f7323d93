"""Random jobs and queues, drawn from the published schemas: mostly plausible, here and there nonsense.

Only numbers of nodes are kept small: a job of ten thousand pods is legal, and would test the testbed.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

_BASES = Path(__file__).resolve().parents[1] / "config" / "crd" / "bases"
_FEW = ("numNodes", "minNodes", "maxNodes", "gpusPerNode", "procsPerNode", "numGPUs")
_JUNK: list[Any] = [
    "", " ", "-", "a" * 300, "ünïcödé", "a b", "../..", "$(HOME)", "{{x}}", "null", "1e99", "-1", "0x10", "\n", "{}",
    0, -1, 3.5, 2**40, True, None, [], {}, ["x"], {"x": 1},
]  # fmt: skip
_QUANTITIES: list[Any] = [1, 8, "500m", "1Gi", "512Mi", "0", "-1", -1, "1e3", "1e99", "9999Ei", ".5", "1u", "96"]
_WORDS = ["a", "train", "x-1", "model.v2", "data", "b2", "nvme", "gpu"]
_COMMANDS: list[Any] = [
    "python train.py", "torchrun train.py --lr 1", "torchrun --nnodes=3 t.py", "deepspeed t.py", ["python", "-c", "pass"],
    "echo 'unclosed", "a && b", [], "", {"not": "a command"}, 7, ["", "x"], "torchrun --standalone --nproc-per-node=2 t.py",
    "NAME=1 python -m x", [1, 2], "python " + "x" * 40000,
]  # fmt: skip
_POD_PIECES: list[Json] = [
    {"dnsPolicy": "Default"}, {"dnsPolicy": "Sometimes"}, {"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["h"]}]},
    {"hostNetwork": True}, {"hostPID": True}, {"serviceAccountName": "robot"}, {"securityContext": {"runAsUser": 0}},
    {"volumes": [{"name": "v", "emptyDir": {}}]}, {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
    {"volumes": [{"emptyDir": {}}]}, {"volumes": "text"}, {"volumes": [{"name": "workspace", "emptyDir": {}}]},
    {"containers": [{"name": "trainer", "env": [{"name": "A", "value": "1"}]}]}, {"containers": [{"name": "side"}]},
    {"containers": [{"image": "x"}]}, {"containers": {}}, {"containers": [None]}, {"initContainers": [{"name": "i", "image": "x"}]},
    {"containers": [{"name": "trainer", "volumeMounts": [{"name": "none", "mountPath": "/x"}]}]},
    {"containers": [{"name": "trainer", "volumeMounts": "text"}]}, {"nodeSelector": {"a": "b"}}, {"nodeSelector": ["a"]},
    {"tolerations": "text"}, {"restartPolicy": "Always"}, {"terminationGracePeriodSeconds": -5}, {"unknownField": 1},
    {"schedulerName": "x y"}, {"hostname": "UPPER"}, {"overhead": {"cpu": "1"}}, {"affinity": {"nodeAffinity": "x"}},
]  # fmt: skip
_POD_METADATA: list[Any] = [
    {}, {"labels": {"a": "b"}}, {"labels": {"a": 1}}, {"labels": "x"}, {"annotations": {"a": "b c"}}, {"labels": {"-bad-": "!"}},
    "text", {"name": "mine", "namespace": "other"}, {"finalizers": ["x.y/z"]},
    {"annotations": {"container.apparmor.security.beta.kubernetes.io/trainer": "unconfined"}},
]  # fmt: skip


class Fuzzer:
    """One stream of objects; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._nonsense = self._often = 0.0
        self._schemas = {kind: _schema(kind) for kind in ("torchrunjobs", "torchrunqueues")}

    def queue(self, name: str) -> Json:
        """One queue."""
        tame = self._mood()
        spec = self._object(self._schemas["torchrunqueues"], "", 0)
        if tame:
            size = {"gpus": self._random.choice([0, 1, 4, 8]), "cpus": 8, "memory": "64Gi"}
            spec |= {"image": "trainer:1", "nodeResources": size}
        return self._whole("TorchrunQueue", name, spec)

    def _mood(self) -> bool:
        """Half of the objects are plain with a few odd fields, so that they go far; the others are wild."""
        tame = self._random.random() < 0.5
        self._nonsense, self._often = (0.003, 0.03) if tame else (0.012, 0.13)
        return tame

    def job(self, name: str, queues: list[str]) -> Json:
        """One job, mostly of a queue that may be there."""
        tame = self._mood()
        spec = self._object(self._schemas["torchrunjobs"], "", 0)
        chance = self._random.random
        spec["command"] = self._random.choice(_COMMANDS[:2] if tame or chance() < 0.4 else _COMMANDS)
        if chance() < 0.9:
            spec["jobQueue"] = self._random.choice(queues) if chance() < 0.9 else "nowhere"
        if tame or chance() < 0.4:
            for word in ("numGPUs", "numNodes", "gpusPerNode", "procsPerNode", "elastic"):
                spec.pop(word, None)
            spec |= self._random.choice([{"numGPUs": self._few()}, {"numNodes": self._few()}, {"numNodes": 2}])
        return self._whole("TorchrunJob", name, spec)

    def patch(self) -> Json:
        """A change of a queue that exists."""
        return {"spec": self._object(self._schemas["torchrunqueues"], "", 0)}

    def _whole(self, kind: str, name: str, spec: Json) -> Json:
        if self._random.random() < 0.02:
            name = self._random.choice(["UPPER", "a" * 60, "-x", "dotted.name", "x-sync", "1st", f"{name}-rdzv"])
        meta: Json = {"name": name}
        if self._random.random() < 0.05:
            meta["annotations"] = {"torchrun.ai/cancel": "true"}
        return {"apiVersion": "torchrun.ai/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}

    # ---- by schema

    def _value(self, schema: Json, name: str, depth: int) -> Any:
        chance = self._random.random
        if chance() < self._nonsense:
            return self._random.choice(_JUNK)
        if schema.get("x-kubernetes-int-or-string"):
            return self._random.choice(_QUANTITIES if chance() < 0.9 else _JUNK)
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return self._raw(name)
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema, name, depth)
        if kind == "array":
            return [self._value(schema["items"], name, depth + 1) for _ in range(self._random.choice([0, 1, 1, 2, 3]))]
        if kind == "boolean":
            return chance() < 0.3
        if kind == "integer":
            return self._integer(schema, name)
        return self._text(schema, name)

    def _object(self, schema: Json, name: str, depth: int) -> Json:
        required = schema.get("required", [])
        made: Json = {}
        for field, inner in schema.get("properties", {}).items():
            if field in required or self._random.random() < (self._often if depth == 0 else 0.4):
                made[field] = self._value(inner, field, depth + 1)
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            for _ in range(self._random.choice([0, 1, 2])):
                made[self._random.choice([*_WORDS, "example.com/zone"])] = self._value(more, name, depth + 1)
        return made

    def _integer(self, schema: Json, name: str) -> int:
        if name in _FEW:
            return self._few()
        low, high = int(schema.get("minimum", -5)), int(schema.get("maximum", 100000))
        return self._random.choice([low, low + 1, min(high, low + 10), min(high, 3600), high])

    def _few(self) -> int:
        return self._random.choice([1, 1, 2, 2, 3, 4, 5, 8, 12, 13, 16, 24])

    def _text(self, schema: Json, name: str) -> str:
        if name == "name" and "Env" in schema.get("description", "Env"):
            return self._random.choice(["A", "B_C", "PATH", "RANK", "WORLD_SIZE", "x.y"])
        if schema.get("pattern", "").startswith("^/"):
            return self._random.choice(["/app", "/data", "/out", "/", "/dev/shm", "/x/../y", "/app"])
        if name in ("image",):
            return self._random.choice(["trainer:1", "registry.local/a/b:2", "not an image", "x@sha256:1"])
        if name in ("url", "code", "data", "output"):
            return self._random.choice(["s3://bucket/x", "https://h/r.git", "file:///x", "nonsense", "s3://"])
        if name == "python":
            return "3.11"
        return self._random.choice(_WORDS)

    def _raw(self, name: str) -> Any:
        choose = self._random.choice
        if name == "podTemplate":
            made: Json = {}
            if self._random.random() < 0.4:
                made["metadata"] = choose(_POD_METADATA)
            if self._random.random() < 0.9:
                made["spec"] = (
                    choose(_POD_PIECES) | choose(_POD_PIECES) if self._random.random() < 0.9 else choose(_JUNK)
                )
            return made
        if name == "volumes":
            return choose(
                [{"name": "v", "emptyDir": {}}, {"name": "v", "hostPath": {"path": "/"}}, {"emptyDir": {}}, {"name": 5}]
            )
        if name == "volumeMounts":
            return choose(
                [{"name": "v", "mountPath": "/v"}, {"name": "w", "mountPath": "/w"}, {"mountPath": "/app"}, {}]
            )
        if name == "affinity":
            return choose(
                [
                    {"nodeAffinity": {}},
                    {"podAntiAffinity": {}},
                    {"nodeAffinity": "x"},
                    {"unknown": {}},
                    {"podAntiAffinity": []},
                ]
            )
        return choose(
            [
                {},
                {"a": "b"},
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
                {"x": [1, {"y": None}]},
            ]
        )


def _schema(plural: str) -> Json:
    crd = yaml.safe_load((_BASES / f"torchrun.ai_{plural}.yaml").read_text())
    schema: Json = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema
