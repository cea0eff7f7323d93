"""A folder on two real nodes: sent through the API server, kept by the store, pulled by every worker before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_engine import OnCluster, a_queue_spec, running_operator
from orchestra.operator.workspace_store import NAME, PORT, workspace_manifests
from testbed.cluster import Cluster
from testbed.images import HOST
from testbed.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
TRAIN = """
import os
from pathlib import Path
import helper
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "says", helper.WORD, "in", os.getcwd(), flush=True)
assert not Path(".env").exists()
"""


@pytest.fixture(scope="module")
def system(cluster: Cluster) -> Iterator[str]:
    """A namespace with the store: as shipped, but with this machine's Python lent to it (which `restricted` forbids)."""
    with cluster.control_plane.namespace("store-") as namespace:
        lent = a_queue_spec()["podTemplate"]["spec"]
        for body in workspace_manifests(image=HOST, store="file:///var/lib/orchestra/snapshots"):
            text = yaml.safe_dump(body).replace("orchestra-system", namespace)
            made: dict[str, Any] = yaml.safe_load(text)
            if made["kind"] == "Deployment":
                pod = made["spec"]["template"]["spec"]
                pod["volumes"] += lent["volumes"]
                pod.pop("securityContext")
                container = pod["containers"][0]
                container["volumeMounts"] += lent["containers"][0]["volumeMounts"]
                container["env"] = a_queue_spec()["env"]
            cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(made))
        wait_until("the store is ready", lambda: _ready(cluster, namespace), timeout=180)
        yield namespace
        cluster.kubectl("delete", "clusterrolebinding", NAME)


def _ready(cluster: Cluster, namespace: str) -> bool:
    found = cluster.api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{NAME}")
    return bool((found.get("status") or {}).get("readyReplicas"))


@pytest.fixture(scope="module")
def operator_log(cluster: Cluster, system: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    with running_operator(
        cluster, log, "--image", HOST, "--workspace-url", f"http://{NAME}.{system}.svc:{PORT}"
    ) as made:
        yield made


def test_the_seeds_line_trains_this_folder(site: OnCluster, system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRA_SYSTEM_NAMESPACE", system)
    spec = a_queue_spec()
    trainer = spec["podTemplate"]["spec"]["containers"][0]
    spec["podTemplate"]["spec"]["initContainers"] = [
        {"name": "orchestra-fetch", "volumeMounts": trainer["volumeMounts"]}
    ]
    spec["storage"] = {"workspace": {"enabled": True, "sizePerGPU": "10Mi"}}
    site.queue("q", **spec | {"nodeResources": {"gpus": 2, "memory": "4Gi"}})
    project = site.folder / "project"
    project.mkdir()
    site.folder = project
    (project / "train.py").write_text(TRAIN)
    (project / "helper.py").write_text("WORD = 'this folder'\n")
    (project / ".env").write_text("TOKEN=hunter2\n")

    here = ["-n", site.namespace]
    line = ["submit", "--queue", "q", "--gpus", "4", "python train.py", "-d", *here]
    submitted = site.cli(*line, program=("kubectl", "torchrun"))
    assert "train submitted to queue q" in submitted.stdout, submitted.stderr
    assert "sent this folder: snapshot" in submitted.stderr, submitted.stderr
    assert ".env looks like a secret" in submitted.stderr
    waited = site.cli("wait", "train", *here)
    log = site.log("train")
    assert waited.returncode == 0, (waited, log)
    for rank in range(4):
        assert f"rank {rank} of 4 says this folder in /app" in log
    again = site.cli("submit", "--queue", "q", "--gpus", "1", "--name", "again", "python train.py", "-d", *here)
    assert again.returncode == 0, again.stderr
    assert site.cli("wait", "again", *here).returncode == 0, site.log("again")
    assert "hunter2" not in site.cluster.kubectl("-n", site.namespace, "get", "pods", "-o", "yaml")
