"""What moves bytes in a worker's pod, as the API server is told."""

from __future__ import annotations

import json
from typing import Any

from builders import a_cpu_queue, a_job
from orchestra.operator.pods import PodOptions, worker_pod
from orchestra.plan import plan

ID = "a" * 64
OPTIONS = PodOptions(image="registry/orchestra:1", workspace_url="http://store:8080")


def pod(**spec: Any) -> dict[str, Any]:
    made = plan(a_cpu_queue(), a_job("train", command=["python", "train.py"], **spec))
    return worker_pod(made, 0, 1, "uid", {}, OPTIONS)["spec"]  # type: ignore[no-any-return]


def orders(container: dict[str, Any]) -> dict[str, Any]:
    told = next(one["value"] for one in container["env"] if one["name"] == "ORCHESTRA_ORDERS")
    return json.loads(told)  # type: ignore[no-any-return]


def test_nothing_is_added_where_nothing_moves() -> None:
    assert "initContainers" not in pod()


def test_a_snapshot_is_pulled_by_id_with_a_token_that_only_the_puller_sees() -> None:
    spec = pod(workspace={"snapshot": ID})
    fetch, follow = spec["initContainers"]
    assert (follow["name"], follow["restartPolicy"]) == ("orchestra-code", "Always")
    assert (orders(follow)["worker"], orders(follow)["socket"]) == ("train-0", "/run/orchestra/state/orders.sock")
    launch = next(one["value"] for one in spec["containers"][0]["env"] if one["name"] == "ORCHESTRA_SPEC")
    assert json.loads(launch)["ordersSocket"] == "/run/orchestra/state/orders.sock"
    assert fetch["image"] == "registry/orchestra:1"
    assert orders(fetch)["workspace"] == {
        "url": "http://store:8080", "snapshot": ID, "tokenFile": "/var/run/orchestra-token/token",
    }  # fmt: skip
    assert orders(fetch)["codeFolder"] == "/app"
    trainer = spec["containers"][0]
    assert {"name": "orchestra-code", "mountPath": "/app"} in trainer["volumeMounts"]
    assert "orchestra-token" not in {mount["name"] for mount in trainer["volumeMounts"]}
    token = next(volume for volume in spec["volumes"] if volume["name"] == "orchestra-token")
    assert token["projected"]["sources"][0]["serviceAccountToken"]["audience"] == "orchestra-workspace"
    assert spec["automountServiceAccountToken"] is False


def test_outputs_are_sent_by_a_native_sidecar_with_the_credentials_of_a_secret() -> None:
    urls = {"code": "s3://b/code", "data": "s3://b/data", "output": "s3://b/out", "secretName": "keys", "interval": 60}
    spec = pod(sync=urls)
    fetch, send = spec["initContainers"]
    assert send["restartPolicy"] == "Always"
    assert {"secretRef": {"name": "keys"}} in fetch["envFrom"]
    assert {"secretRef": {"name": "keys"}} not in spec["containers"][0]["envFrom"]
    assert spec["terminationGracePeriodSeconds"] == 120 + 10 + 300, "the last upload has time of its own"
    told = orders(send)
    assert (told["output"], told["outputFolder"], told["interval"]) == ("s3://b/out", "/out", 60)
    assert (told["dataFolder"], told["codeFolder"]) == ("/data", "/app")
    mounted = {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert {"/app", "/data", "/out"} <= mounted
    launch = next(one["value"] for one in spec["containers"][0]["env"] if one["name"] == "ORCHESTRA_SPEC")
    assert json.loads(launch)["env"]["ORCHESTRA_OUTPUT_DIR"] == "/out"


def test_a_repository_is_cloned() -> None:
    (fetch,) = pod(workspace={"source": "git", "url": "https://host/repo", "ref": "v1"})["initContainers"]
    assert orders(fetch)["git"] == {"url": "https://host/repo", "ref": "v1"}
